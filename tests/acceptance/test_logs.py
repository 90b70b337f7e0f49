"""What the relay's processes log with `log_format = "json"`: objects, and nothing that is secret."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from pytest_celery import CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.commands import CELERY
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import SCHEME
from tests.conftest import Rows, Stream, eventually, seconds_from_now
from tests.receiver import Receiver, receiver

SECRET, PRIVATE = "pa55-s3cr3t", "payl0ad-5ecret"
"""Part of every URL, and of every payload."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedValkey]:
    """A Redis-compatible server with a password."""
    with EmbeddedValkey() as made:
        yield made


@pytest.fixture(scope="module")
def broker_url(server: EmbeddedValkey) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", SECRET)
    return server.url.replace("://", f"://:{SECRET}@")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Receiver]:
    """Where messages go by HTTP."""
    with receiver() as made:
        made.echo = True
        yield made


@pytest.fixture(scope="module")
def web() -> Iterator[Receiver]:
    """Where alerts go."""
    with receiver() as made:
        yield made


@pytest.fixture(scope="module")
def values(web: Receiver) -> dict[str, Any]:
    return {
        "alert_webhook": web.url,
        "log_format": "json",
        "claim_interval": 0.3,
        "backoff_base": 0.2,
        "breaker_failures": 2,
    }


@pytest.fixture(scope="module")
def destinations(broker_url: str, stream: Stream, endpoint: Receiver) -> dict[str, Any]:
    there = broker_url.rpartition("/")[0]
    http = endpoint.url.replace("://", f"://user:{SECRET}@") + f"?token={SECRET}&outbox_private=allow"
    return {
        "orders": {"url": there.replace("redis://", "redis+stream://") + f"/3/{stream.name}"},
        "single": {"url": stream.url, "singles": "all"},
        "told": {"url": stream.url.replace("redis+stream", SCHEME), "max_attempts": 3, "on_dead": "skip"},
        "hook": {"url": http, "max_attempts": 2},
        "away": {"url": f"http://user:{SECRET}@127.0.0.1:1/{SECRET}?outbox_private=allow"},
    }


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    relay.beat([*CELERY, "beat", "-l", "DEBUG"])
    claim = [*CELERY, "worker", "-Q", "outbox.claim,outbox.maintain", "-n", "claim@%h", "-P", "solo", "-l", "DEBUG"]
    publish = [
        *CELERY,
        "worker",
        "-Q",
        "outbox.publish,outbox.drain",
        "-n",
        "publish@%h",
        "-c",
        "2",
        "-E",
        "-l",
        "DEBUG",
    ]
    return cluster(relay, [relay.worker(claim), relay.worker(publish)])


@pytest.fixture(scope="module")
def logs(
    relay: Relay,
    celery_worker_cluster: CeleryWorkerCluster,
    engine: Engine,
    outbox: Outbox,
    endpoint: Receiver,
    web: Receiver,
    schema: str,
) -> dict[str, str]:
    """What beat, the claim worker and the publish worker wrote from start to end, with all kinds of trouble between."""
    rows = Rows(engine, schema)

    def write(to: str, count: int = 1, key: str | None = None, **payload: Any) -> list[str]:
        with Session(engine) as session, session.begin():
            told = {"private": PRIVATE, **payload}
            return [str(outbox.publish(session, f"{to}.made", told, to=to, key=key)) for _ in range(count)]

    write("orders", 50)
    write("single", 2)
    write("told", 5, fail=1)
    write("told", 20, refuse="not_wanted")
    write("told", key="customer:7", refuse="not_wanted")
    write("told", fail=99)
    endpoint.status = 400
    write("hook", 3)
    eventually(lambda: sum(row.status == "dead" for row in rows.hot()) >= 25, 60)
    # By itself: this destination raises for it, and the rest of its batch would be tried again with it.
    rows.insert(destination="told", payload=f"no JSON {PRIVATE}".encode())
    endpoint.status = 500
    write("hook", 3)
    write("away", 2)
    rows.insert(destination="unknown", payload=PRIVATE.encode(), locked_until=seconds_from_now(-7200))
    eventually(lambda: not [row for row in rows.hot() if row.status != "dead" and row.destination != "away"], 60)
    eventually(lambda: ("breaker_open", "away") in [(one["code"], one["which"]) for one in web.problems()], 60)
    assert PRIVATE in " ".join(str(row.last_error) for row in rows.hot())  # the endpoint repeats what it gets
    for node in relay.nodes:
        node.container.kill(signal.SIGTERM)
    for node in relay.nodes:
        node.container.child.wait(60)
    return dict(zip(("beat", "claim", "publish"), (node.logs() for node in relay.nodes), strict=True))


def test_nothing_secret_is_in_any_log(logs: dict[str, str], web: Receiver, postgres_url: str) -> None:
    secrets = {SECRET, PRIVATE, web.secret, urlsplit(postgres_url).password} - {None, "outbox"}
    for text in logs.values():
        assert "DEBUG" in text
        assert not [secret for secret in secrets if secret in text]
    assert web.got
    assert not [secret for secret in secrets if secret in json.dumps(web.got)]


def test_each_line_is_an_object(logs: dict[str, str]) -> None:
    for text in logs.values():
        # Celery writes that a worker ends past all loggers.
        for line in filter(lambda line: line and not line.startswith("worker: "), text.splitlines()):
            said = json.loads(line)
            assert {"ts", "level", "logger", "message", "process", "pid"} <= said.keys()


def test_routine_is_logged_at_debug_only(logs: dict[str, str]) -> None:
    """An idle relay claims several times a second."""
    lines = [json.loads(line) for text in logs.values() for line in text.splitlines() if line.startswith("{")]
    routine = ("outbox_tasks.claim[", "claimed 0 singles, started 0 drains, 0 dead", "due task")
    told = {line["level"] for line in lines if any(words in line["message"] for words in routine)}
    assert told == {"DEBUG"}


def test_an_alert_is_a_line_with_its_facts(logs: dict[str, str], web: Receiver) -> None:
    [away] = [one for one in web.problems() if (one["code"], one["which"]) == ("breaker_open", "away")][:1]
    assert away in [json.loads(line)["alert"] for line in logs["claim"].splitlines() if '"alert": ' in line]
