"""Supervised tasks on real workers: what runs, what runs again, and what the rows say in the end."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import redis
from celery import chain, chord
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from tests.acceptance.nodes import Node, Relay, freeze
from tests.conftest import Rows, eventually

LEASE = 2.0

CELERY = [sys.executable, "-m", "celery", "-A"]


@pytest.fixture(scope="module")
def destinations(broker_url: str) -> dict[str, Any]:
    return {"tasks": {"url": "celery://", "confirm": "run", "run_lease": LEASE, "max_attempts": 2}}


class Shop:
    """The application: its relay, its workers, and what their tasks wrote down."""

    def __init__(self, relay: Relay, broker_url: str, engine: Engine, rows: Rows) -> None:
        from celery import Celery

        self.relay, self.engine, self.rows = relay, engine, rows
        self.app = Celery("shop", broker=broker_url, backend=broker_url, set_as_current=False)
        self.outbox = Outbox(relay.settings, celery=self.app)
        self.client: Any = redis.Redis.from_url(broker_url, decode_responses=True)
        self.workers: dict[str, Node] = {}

    def worker(self, pool: str, *options: str) -> Node:
        argv = [*CELERY, "tests.acceptance.supervised_app", "worker", "-l", "INFO", "-P", pool, "--without-mingle"]
        made = self.relay.worker([*argv, "-c", "2", "-Q", pool, "-n", f"{pool}@%h", *options])
        self.workers[pool] = made
        return made

    def call(self, name: str, act: str = "", task: str = "shop.run", pool: str = "prefork", **options: Any) -> str:
        """Returns the id of its row."""
        with Session(self.engine) as session, session.begin():
            result = self.outbox.apply_async(session, task, (name, act), queue=pool, **options)
        return self.id_of(result.id)

    def id_of(self, task_id: str) -> str:
        [row] = [row for row in self.rows.shown() if row.aggregate_id == task_id]
        return str(row.id)

    def runs(self, name: str) -> list[str]:
        said = [each.partition(" ") for each in self.client.lrange("runs", 0, -1)]
        return [what for whose, _, what in said if whose == name]

    def shown(self, id: str) -> Any:
        [row] = [row for row in self.rows.shown() if str(row.id) == id]
        return row

    def state(self, id: str) -> str:
        return str(self.shown(id).state)


@pytest.fixture(scope="module")
def shop(relay: Relay, broker_url: str, engine: Engine, schema: str) -> Iterator[Shop]:
    made = Shop(relay, broker_url, engine, Rows(engine, schema))
    relay.worker([*CELERY, "outbox_tasks", "worker", "-l", "INFO", "-B", "-P", "threads", "-c", "4"])
    made.worker("prefork")
    made.worker("threads")
    relay.ready()
    yield made
    made.client.close()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_run_and_their_rows_say_how_they_ended(shop: Shop, pool: str) -> None:
    plain = shop.call(f"{pool}-plain", pool=pool)
    again = shop.call(f"{pool}-again", "retry", pool=pool)
    failed = shop.call(f"{pool}-failed", "fail", pool=pool)
    steps = [
        shop.app.signature("shop.run", (f"{pool}-{n}",), queue=pool, immutable=True)
        for n in ("first", "second", "last")
    ]
    with Session(shop.engine) as session, session.begin():
        last = shop.outbox.apply_async(session, chain(*steps))
    eventually(lambda: shop.state(plain) == shop.state(again) == "sent" and shop.state(failed) == "dead")
    eventually(lambda: [row.state for row in shop.rows.shown() if row.aggregate_id == last.id] == ["sent"])
    assert shop.runs(f"{pool}-plain") == ["begins 0", "ends"]
    assert shop.runs(f"{pool}-again") == ["begins 0", "begins 1", "begins 2", "ends"]
    assert [shop.runs(f"{pool}-{n}") for n in ("first", "second", "last")] == [["begins 0", "ends"]] * 3
    row = shop.shown(failed)
    assert (row.last_error_code, row.last_error) == ("ValueError", f"{pool}-failed")
    assert "in fail" in row.history[-1]["traceback"]


def test_the_header_of_a_chord_is_supervised_and_its_body_is_sent_by_celery(shop: Shop) -> None:
    def step(name: str) -> Any:
        return shop.app.signature("shop.run", (name,), queue="prefork", immutable=True)

    with Session(shop.engine) as session, session.begin():
        result = shop.outbox.apply_async(session, chord([step("header 1"), step("header 2")], step("body")))
    eventually(lambda: shop.runs("body") == ["begins 0", "ends"])
    header = [shop.id_of(each.id) for each in result.parent.results]
    eventually(lambda: [shop.state(id) for id in header] == ["sent", "sent"])
    assert result.id not in {row.aggregate_id for row in shop.rows.shown()}


def test_a_worker_that_was_stopped_for_longer_than_its_lease_does_not_go_on(shop: Shop) -> None:
    id = shop.call("frozen", "wait")
    eventually(lambda: shop.runs("frozen"))
    main = psutil.Process(shop.workers["prefork"].pid)
    begun = eventually(lambda: shop.state(id) == "running" and shop.shown(id).locked_until)
    eventually(lambda: shop.shown(id).locked_until > begun)  # it has been renewed
    everybody = [main, *main.children()]
    for process in everybody:
        freeze(process)
    eventually(lambda: shop.shown(id).last_error_code == "worker_lost")
    for process in everybody:
        process.resume()
    eventually(lambda: "so it is stopped here" in shop.workers["prefork"].logs())
    eventually(lambda: len(shop.runs("frozen")) == 2 and not set(everybody) <= {main, *main.children()})
    shop.client.set("go frozen", 1)
    eventually(lambda: shop.state(id) == "sent")
    assert shop.runs("frozen") == ["begins 0", "begins 0", "ends"]


def test_tasks_that_are_killed_from_outside_end_as_their_rows_say(shop: Shop) -> None:
    """By a signal, by a hard time limit, or by a person."""
    deadly = [shop.call(task, "die", task) for task in ("shop.run", "shop.late")]
    slow, running = shop.call("slow", "wait", "shop.brief"), shop.call("stopped", "wait")
    eventually(lambda: shop.runs("stopped"))
    waiting = shop.call("never", countdown=3)
    for id in (running, waiting):
        shop.app.control.revoke(shop.shown(id).aggregate_id, terminate=True)
    eventually(lambda: {shop.state(id) for id in (*deadly, slow)} == {"dead"}, 90)
    eventually(lambda: {shop.state(id) for id in (running, waiting)} == {"discarded"})
    assert [shop.shown(id).last_error_code for id in (*deadly, slow, running, waiting)] == [
        "worker_lost", "worker_lost", "TimeLimitExceeded", "revoked", "revoked"]  # fmt: skip
    assert {name: len(shop.runs(name)) for name in ("shop.run", "shop.late", "slow", "stopped", "never")} == {
        "shop.run": 2, "shop.late": 2, "slow": 1, "stopped": 1, "never": 0}  # fmt: skip


def test_when_a_whole_worker_is_killed_its_tasks_run_elsewhere(shop: Shop) -> None:
    victim = shop.worker("solo")
    victim.ready()
    id = shop.call("moved", "wait", pool="solo")
    eventually(lambda: shop.runs("moved"))
    children = psutil.Process(victim.pid).children(recursive=True)
    victim.kill()
    assert not children
    shop.client.set("go moved", 1)
    shop.worker("solo").ready()
    eventually(lambda: shop.state(id) == "sent")
    assert shop.runs("moved") == ["begins 0", "begins 0", "ends"]
    assert shop.shown(id).last_error_code == "worker_lost"


def test_a_stopping_worker_ends_what_it_runs_and_says_good_bye(shop: Shop) -> None:
    def heartbeats() -> dict[str, list[str]]:
        with shop.engine.connect() as connection:
            found = connection.execute(shop.rows.tables.heartbeats.select()).all()
        return {row.facts["pool"]: row.facts["queues"] for row in found if row.kind == "tasks"}

    assert heartbeats()["prefork"] == ["prefork"]
    id = shop.call("last", "wait")
    eventually(lambda: shop.runs("last"))
    shop.workers["prefork"].kill("SIGTERM")
    eventually(lambda: re.search("Warm shutdown|shutting down", shop.workers["prefork"].logs()))
    begun = shop.shown(id).locked_until
    eventually(lambda: (shop.shown(id).locked_until - begun).total_seconds() > 2 * LEASE)
    shop.client.set("go last", 1)
    eventually(lambda: shop.state(id) == "sent")
    eventually(lambda: not shop.workers["prefork"].alive)
    assert shop.runs("last") == ["begins 0", "ends"]
    assert "prefork" not in heartbeats()
