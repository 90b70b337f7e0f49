"""People are told of trouble once, by whichever worker, whatever is killed; and not by a Celery task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from lab.proxy import Proxy
from outbox_tasks import Outbox
from tests.acceptance.nodes import Relay, Worker
from tests.conftest import Rows, eventually
from tests.receiver import Receiver, receiver

MINUTES = 180.0
"""Seconds: a problem is over when it was absent for one minute, and a look comes each quarter of a minute."""


@pytest.fixture(scope="module")
def web() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture(scope="module")
def values(web: Receiver) -> dict[str, Any]:
    return {"alert_webhook": web.url}


@pytest.fixture(scope="module")
def broker_proxy(broker_url: str) -> Iterator[Proxy]:
    proxy = Proxy(int(urlsplit(broker_url).port or 6379))
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def workers(relay: Relay, broker_url: str, broker_proxy: Proxy) -> list[Worker]:
    """Two that look for problems, in a relay that is whole. Their broker can be taken away."""
    parts = urlsplit(broker_url)
    url = parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{broker_proxy.port}")).geturl()
    relay.beat(broker_url=url)
    relay.publish(1, broker_url=url)
    looking = [relay.claim(name, broker_url=url) for name in ("one", "two")]
    relay.ready()
    return looking


@pytest.mark.timeout(600)
def test_a_cluster_tells_each_change_once_through_a_failed_post_a_kill_and_an_outage_of_the_broker(
    workers: list[Worker], web: Receiver, engine: Engine, outbox: Outbox, rows: Rows, broker_proxy: Proxy
) -> None:
    ids: list[str] = []

    def die(count: int) -> None:
        with Session(engine) as session, session.begin():
            ids.extend(str(outbox.publish(session, "a", {"refuse": "no"}, to="told")) for _ in range(count))
        eventually(lambda: all(rows.state(id) == "dead" for id in ids), 60)

    def posted(code: str, state: str = "open") -> list[dict[str, Any]]:
        return [one for got in web.got for one in got["problems"] if (one["code"], one["state"]) == (code, state)]

    def logged(words: str) -> list[Worker]:
        return [worker for worker in workers for line in worker.logs().splitlines() if words in line]

    web.status = 500
    die(2)
    eventually(lambda: web.tries >= 2, MINUTES)
    assert not web.got
    web.status = 200
    [dead] = eventually(lambda: posted("dead_letters"), MINUTES)
    assert (dead["which"], dead["how_many"], dead["severity"]) == ("told", 2, "warning")
    [teller] = logged("warning: told: 2 dead letters")

    teller.kill()
    [survivor] = [worker for worker in workers if worker is not teller]
    die(2)
    eventually(lambda: len(posted("dead_letters")) == 2, MINUTES)
    assert posted("dead_letters")[1]["how_many"] == 4

    rows.change(ids, destination="orders", status="pending", dead_at=None)
    [over] = eventually(lambda: posted("dead_letters", "over"), MINUTES)
    assert over["lasted"] > 0

    broker_proxy.close()
    [away] = eventually(lambda: posted("broker_away"), MINUTES)
    assert away["severity"] == "error"
    assert logged("error: The broker ") == [survivor]
    assert not posted("no_beat"), "it follows from the broker"
    assert len(posted("dead_letters")) == 2
