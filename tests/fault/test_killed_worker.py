"""A worker that is killed: between the send and the settle, by what it sends, or together with its broker."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
from celery import Celery
from celery.platforms import EX_FAILURE
from sqlalchemy import Engine, cast, func, literal, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.destinations import BATCH_SIZE
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import (
    CALM,
    Here,
    archive_locked,
    check,
    drained,
    slow_messages,
    waiting_for_locks,
)

LEASES = {"queue_lease": 30}
"""Nobody waits for the end of a lease."""


TASKS = 60
SHOP_WORKER = [sys.executable, "-m", "celery", "-A", "tests.fault.shop_app", "worker", "-B", "-c", "2", "-l", "INFO"]


def test_messages_that_a_killed_process_sent_but_did_not_settle_are_soon_sent_again_with_the_cause(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str
) -> None:
    worker = relay.publish(concurrency=2, **LEASES)
    relay.claim(**LEASES)
    relay.beat(**LEASES)
    relay.ready()

    def one_of_its_processes() -> None:
        worker.pool()[0].kill()

    def all_of_the_worker() -> None:
        pool = worker.pool()
        worker.kill()
        for process in pool:
            process.kill()

    ids: list[str] = []
    for end in (one_of_its_processes, all_of_the_worker):
        before = len(stream)
        with archive_locked(engine, schema):
            ids += rows.insert(12)
            eventually(lambda before=before: len(stream) >= before + 2)  # one of each process
            eventually(lambda: waiting_for_locks(engine, schema))
            end()
            # The server has given up their settles. By now a successor may wait for the next message's.
            left = waiting_for_locks(engine, schema)
            eventually(lambda left=left: left.isdisjoint(waiting_for_locks(engine, schema)))
        if not worker.alive:
            worker.restart()
        drained(rows)
    sends = Counter(stream.ids())
    repeated = {id for id, count in sends.items() if count > 1}
    assert check(rows, stream, ids) == sends.total() - len(sends)
    assert len(repeated) >= 3
    unsettled = {str(row.id) for row in rows.archived() if row.last_error_code == "unsettled"}
    assert repeated <= unsettled  # the others were begun, and not sent
    # Where the machine is slow, a successor's settle fails too.
    assert all(row.attempts >= sends[str(row.id)] for row in rows.archived())
    assert {str(row.id) for row in rows.archived() if row.attempts > 1} == unsettled


def test_a_drain_ends_after_its_batch_when_its_worker_is_told_to_stop(relay: Relay, rows: Rows, stream: Stream) -> None:
    worker = relay.publish(pool="threads", **CALM)
    relay.claim(**CALM)
    relay.ready()
    ids = slow_messages(rows)  # a batch takes two seconds: a drain would send several
    relay.beat(**CALM)
    eventually(lambda: any(row.begun for row in rows.hot()))
    worker.kill("SIGTERM")
    worker.child.wait(60)
    assert len(stream) == BATCH_SIZE
    worker.restart()
    drained(rows)
    assert check(rows, stream, ids) == 0


def test_a_worker_that_failed_ends_even_if_it_can_not_read_its_last_results(
    relay: Relay, rows: Rows, here: Here
) -> None:
    worker = relay.publish()
    relay.ready()
    rows.insert(1, destination="told", payload=json.dumps({"garble": True}).encode())
    here.claim()
    eventually(lambda: "Unrecoverable error" in worker.logs())
    assert worker.child.wait(relay.settings.hard_time_limit + 60) == EX_FAILURE


def test_a_message_that_kills_its_worker_or_can_not_be_read_ends_dead_and_its_neighbours_are_sent(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str
) -> None:
    """They are drained, and what may have killed a worker then travels singly."""
    theirs = relay.values["destinations"]
    two_attempts = {**theirs, "told": {**theirs["told"], "max_attempts": 2}}
    relay.publish(destinations=two_attempts, singles=0)
    relay.claim(destinations=two_attempts, singles=0)
    relay.beat()
    relay.ready()
    [killer] = rows.insert(1, destination="told", payload=json.dumps({"die": True}).encode())
    neighbours = rows.insert(10, destination="told")
    deep = cast(func.repeat("[", 3000).concat(func.repeat("]", 3000)), JSONB)
    long = cast(literal('{"a": ' + "9" * 5000 + "}"), JSONB)
    unreadable = {
        *rows.insert(1, destination="told", headers=deep),
        *rows.insert(1, destination="told", headers=long),
    }
    neighbours += rows.insert(10, destination="told")

    def ends() -> dict[str, tuple[str, int, str | None]]:
        columns = "id::text, state, attempts, last_error_code"
        with engine.connect() as connection:  # not all of them can be read as Python values
            found = connection.execute(text(f"SELECT {columns} FROM {schema}.outbox_all"))
            return {id: (state, attempts, code) for id, state, attempts, code in found}

    eventually(lambda: {ends()[id][0] for id in (killer, *unreadable)} == {"dead"}, 60)
    eventually(lambda: {ends()[id][0] for id in neighbours} == {"sent"}, 60)
    assert ends()[killer][1:] == (2, "unsettled")
    assert {ends()[id][1:] for id in unreadable} <= {(1, "bad_headers"), (2, "bad_headers")}
    assert sorted(stream.ids()) == sorted(neighbours)  # those in their batches were begun, and not sent


class TestStoredTasks:
    @pytest.fixture
    def values(self, values: dict[str, object]) -> dict[str, object]:
        return {**values, "destinations": {"tasks": {"url": "celery://", "run_lease": 2}}}

    def test_under_install_no_task_is_lost_with_its_worker_and_its_broker(
        self, relay: Relay, engine: Engine, rows: Rows, redis_url: str, stream: Stream, own_redis: EmbeddedValkey
    ) -> None:
        worker = relay.worker(SHOP_WORKER)
        relay.ready()
        app = Celery("shop", broker=own_redis.url, set_as_current=False)
        outbox = Outbox(relay.settings, celery=app)
        outbox.install(app)
        for number in range(TASKS):
            with Session(engine) as session, session.begin():
                outbox.delay(session, "shop.mail", number, redis_url, stream.name)

        def mailed() -> Counter[int]:
            return Counter(map(int, stream.client.lrange(stream.name, 0, -1)))  # type: ignore[arg-type]

        eventually(lambda: TASKS / 4 < len(mailed()) < TASKS * 3 / 4)
        worker.kill()
        worker.child.end()
        own_redis.kill()
        own_redis.start()
        assert len(mailed()) < TASKS - 5
        worker.restart()
        eventually(lambda: len(mailed()) == TASKS, 90)
        eventually(lambda: {row.state for row in rows.shown()} == {"sent"})
        assert mailed().total() <= TASKS + 2  # the two that ran as their worker was killed
