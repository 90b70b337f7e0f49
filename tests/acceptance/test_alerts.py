"""People are told of trouble once, by whichever of many processes, and at a webhook that may be in trouble itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.commands import CELERY
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.receiver import Receiver, receiver

REPEAT = 4.0
"""Seconds, in place of an hour. Each worker looks at the alerts twenty-four times in it."""

STALE = 1.0

Write = Callable[..., list[str]]


@pytest.fixture(scope="module")
def web() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture(scope="module")
def values(web: Receiver) -> dict[str, Any]:
    return {
        "alert_webhook": web.url,
        "alert_repeat": REPEAT,
        "stale_after": STALE,
        "breaker_failures": 2,
        "breaker_pause": 0.05,
        "send_timeout": 2,
    }


@pytest.fixture(scope="module")
def destinations(destinations: dict[str, Any], stream: Stream) -> dict[str, Any]:
    told = destinations["told"]
    names = ("flooded", "away", "hanging")
    # Nobody listens on port 1.
    away = {"url": "redis+stream://127.0.0.1:1/0/nothing"}
    return {
        **destinations,
        **dict.fromkeys(names, told),
        "away": away,
        "metered": {"url": stream.url, "rate_limit": 0.01},
    }


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    relay.beat()
    return cluster(relay, [relay.claim(), relay.publish(1, 3)])


@pytest.fixture
def write(celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox) -> Write:
    """Commits messages."""

    def commit(to: str, payload: Any, count: int = 1) -> list[str]:
        with Session(engine) as session, session.begin():
            return [str(outbox.publish(session, "order.created", payload, to=to)) for _ in range(count)]

    return commit


def logged(relay: Relay) -> list[dict[str, Any]]:
    """The alerts in the logs of all processes."""
    written = [node.logs().rpartition("\n")[0] for node in relay.nodes]  # without half a line
    lines = [line for text in written for line in text.splitlines() if '"text": ' in line]
    return [json.loads(line[line.index("{") :]) for line in lines]


def test_many_processes_send_one_alert_for_dead_letters(write: Write, relay: Relay, web: Receiver, rows: Rows) -> None:
    began = time.monotonic()
    write("flooded", {"refuse": "not_wanted"}, 500)
    [alert, *_] = eventually(lambda: [one for one in web.of("dead_letter") if one["destination"] == "flooded"])
    assert alert["code"] == "not_wanted"
    assert "flooded: " in alert["text"]
    eventually(lambda: sum(row.destination == "flooded" and row.status == "dead" for row in rows.hot()) == 500, 60)
    # Later ones are told of when the time has come, all that happened meanwhile together.

    def told() -> list[dict[str, Any]]:
        return [one for one in web.of("dead_letter") if one["destination"] == "flooded"]

    def another() -> bool:
        [id] = write("flooded", {"refuse": "not_wanted"})
        eventually(lambda: rows.state(id) == "dead")
        return len(told()) > 1 and sum(one["count"] for one in told()) >= 500

    eventually(another)
    alerts = told()
    assert sum(one["count"] for one in alerts) <= alerts[-1]["total"]
    assert len(alerts) <= 1 + (time.monotonic() - began) / REPEAT
    # Another process may post it before the one that it came up in has logged it.
    eventually(lambda: [one["name"] for one in logged(relay)].count(alert["name"]) >= 2)


def test_an_outage_and_its_end_cause_alerts(write: Write, web: Receiver, rows: Rows, stream: Stream) -> None:
    ids = write("away", {}, 3)

    def told(state: str) -> list[dict[str, Any]]:
        return [one for one in web.of("breaker", state) if one["destination"] == "away"]

    [alert] = eventually(lambda: told("open"), 60)
    assert alert["text"].startswith("away is out of reach (connection)")
    again = eventually(lambda: len(told("open")) > 1 and told("open")[1], 60)
    assert "in all)" in again["text"]
    assert told("over") == []
    rows.change(ids, destination="orders")
    with rows.engine.begin() as connection:  # what the first message that gets through would do
        connection.execute(rows.tables.destinations.update().values(opened_at=None, failures=0, probe=None))
    [over] = eventually(lambda: told("over"), 60)
    assert over["text"].startswith("away is in reach again, after ")


def test_overdue_messages_and_their_end_cause_alerts(write: Write, web: Receiver, rows: Rows) -> None:
    ids = write("metered", {}, 3)  # one of them is sent, the others wait

    def told(state: str) -> list[dict[str, Any]]:
        return [one for one in web.of("stale", state) if one["destination"] == "metered"]

    alert = eventually(lambda: told("open"), 60)[0]
    assert alert["oldest"] >= STALE
    assert alert["text"].startswith("metered is stale: its oldest message has been due for ")
    rows.change(ids, destination="orders")
    over = eventually(lambda: told("over"), 60)[0]
    assert over["text"].startswith("metered is not stale any more")


def test_a_webhook_that_hangs_holds_up_nothing(write: Write, web: Receiver, stream: Stream) -> None:
    web.hang = True
    try:
        tries = web.tries
        write("hanging", {"refuse": "no"})
        eventually(lambda: web.tries > tries)

        def on_time() -> bool:
            """Whether messages arrive in less time than a try takes."""
            before = web.tries
            for _ in range(5):
                ids = write("orders", {}, 50)
                eventually(lambda ids=ids: set(ids) <= set(stream.ids()))
            return web.tries - before < 5

        eventually(on_time, 120)  # not at once on a machine with much to do
    finally:
        web.hang = False
    eventually(lambda: [one for one in web.of("dead_letter") if one["destination"] == "hanging"], 60)


def test_a_worker_without_the_webhook_s_client_says_so_at_its_start(relay: Relay, tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("raise ModuleNotFoundError('there is none', name='httpx')")
    without = Relay(tmp_path, relay.values, tmp_path, *relay.paths)
    worker = without.worker([*CELERY, "worker", "-Q", "outbox.maintain", "-P", "solo"])
    try:
        assert worker.container.child.wait(60) == 1
        assert "pip install 'outbox-tasks[http]'" in worker.logs()
    finally:
        without.close()
