"""The runs of handed-over tasks against PostgreSQL: which copy begins, who may end it, and what is left on the row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from outbox_tasks.migrations import upgrade
from outbox_tasks.model import Step, Verdict, content
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised.store import Begun, Received, Run, Runs
from tests.claims import drain_batches, keep_house
from tests.conftest import MakeStore, Rows, eventually, seconds_from_now
from tests.integration.conftest import Lease

LATER = seconds_from_now(3600)
HANDED: dict[str, Any] = {"attempts": 1, "lease": uuid4(), "handed_at": seconds_from_now(-5), "locked_until": LATER}
SAME = content(b"{}", {})


@pytest.fixture
def runs(store: Store) -> Iterator[Runs]:
    made = Runs(store.engine, store.settings)
    yield made
    made.close()


def run_of(id: str) -> Run:
    return Run(id, str(uuid4()))


def begun(runs: Runs, id: str, hold: float = 60) -> Run:
    run = run_of(id)
    assert runs.begin(run, SAME, hold, "worker") is not None
    return run


def drained(store: Store) -> Counter[Step]:
    publishers = Publishers(store.settings)
    try:
        return drain_batches(store, publishers)
    finally:
        publishers.close()


class TestHandOver:
    def test_a_recall_leaves_it_alone(self, store: Store, rows: Rows) -> None:
        [id] = rows.insert(payload=b"{}", locked_by="gone", **HANDED)
        assert (store.recall(), store.recall("gone")) == (0, 0)
        assert rows.state(id) == "handed over"

    def test_it_waits_twice_as_long_after_each_time_that_nobody_began(
        self, store: Store, rows: Rows, lease: Lease
    ) -> None:
        [id] = rows.insert(**HANDED | {"locked_until": seconds_from_now(-1)})
        waits = []
        for _ in range(9):
            batch = lease(0)
            [message] = batch.messages
            store.settle(batch.token, "orders", [Verdict(message, Step.HANDED, 100)])
            row = rows.one(id)
            assert (row.last_error_code, row.attempts) == ("not_started", 1)
            waits.append(round((row.locked_until - row.handed_at).total_seconds() / 100))
            rows.change([id], locked_until=seconds_from_now(-1))
        assert waits == [2, 4, 8, 16, 32, 64, 64, 64, 64]

    def test_an_outage_of_the_broker_does_not_make_it_wait_longer(self, store: Store, rows: Rows, lease: Lease) -> None:
        batch = lease(outages=4, last_error_code="connection")
        [message] = batch.messages
        store.settle(batch.token, "orders", [Verdict(message, Step.HANDED, 100)])
        row = rows.one(message.id)
        assert row.outages == 0
        assert (row.locked_until - row.handed_at).total_seconds() < 101


class TestBegin:
    def test_the_first_copy_gets_the_run(self, runs: Runs, rows: Rows) -> None:
        [id] = rows.insert(payload=b"{}", key="k", **HANDED)
        assert runs.begin(run_of(id), SAME, 60) == Begun(1, "orders", "k", ANY)
        assert runs.begin(run_of(id), SAME, 60) is None
        assert rows.state(id) == "running"
        assert runs.whereabouts(id) == ("running", rows.one(id).locked_by)

    def test_nothing_else_begins(self, runs: Runs, rows: Rows) -> None:
        others: list[dict[str, Any]] = [
            {},
            {"lease": uuid4(), "locked_until": LATER},
            {"status": "dead"},
            {"attempts": 1, "locked_until": LATER},
        ]
        ids = [rows.insert(payload=b"{}", **columns)[0] for columns in others]
        before = rows.hot()
        assert [runs.begin(run_of(id), SAME, 60) for id in (*ids, str(uuid4()))] == [None] * 5
        assert rows.hot() == before
        assert runs.whereabouts(str(uuid4())) is None

    def test_a_copy_that_says_something_else_does_not(self, runs: Runs, rows: Rows) -> None:
        envelope = {"celery-message": '{"retries": 1}'}
        [id] = rows.insert(payload=b"{}", headers=envelope, **HANDED)
        assert runs.begin(run_of(id), SAME, 60) is None
        received = Received("", id, content(b"{}", {}))
        assert runs.begin(run_of(id), content(b"{}", envelope), 60, received=received) is not None

    def test_another_task_with_the_header_of_a_copy_does_not(self, runs: Runs, rows: Rows) -> None:
        """Whoever can read a queue can copy a header."""
        envelope = {"celery-message": json.dumps({"headers": {"task": "shop.long", "id": "t1"}})}
        said = content(b"[[7], {}]", envelope)
        [stored] = rows.insert(payload=b"[[7], {}]", headers=envelope, **HANDED)
        [made] = rows.insert(payload=b"{}", **HANDED)
        own = Received("shop.long", "t1", content(b"[[7], {}]", {}))
        for other in (
            own._replace(task="shop.quick"), own._replace(id="t2"), own._replace(body=content(b"[[8], {}]", {})),
        ):  # fmt: skip
            assert runs.begin(run_of(stored), said, 60, received=other) is None
        assert runs.begin(run_of(made), SAME, 60, received=own) is None
        assert (rows.state(stored), rows.state(made)) == ("handed over", "handed over")
        assert runs.begin(run_of(stored), said, 60, received=own) is not None
        assert runs.begin(run_of(made), SAME, 60) is not None

    def test_past_its_time_it_may_until_the_claim_takes_it(self, runs: Runs, store: Store, rows: Rows) -> None:
        ids = rows.insert(2, payload=b"{}", **HANDED | {"locked_until": seconds_from_now(-1)})
        begun(runs, ids[0])
        keep_house(store)
        assert (rows.one(ids[1]).attempts, rows.one(ids[1]).last_error_code) == (0, "not_started")
        assert runs.begin(run_of(ids[1]), SAME, 60) is None


class TestRun:
    def test_is_renewed_with_its_own_token_only(self, runs: Runs, rows: Rows) -> None:
        ids = rows.insert(2, payload=b"{}", **HANDED)
        mine, lost = (begun(runs, id, 1) for id in ids)
        other = Run(lost.id, str(uuid4()))
        assert runs.renew({mine: 100, other: 100}) == {mine.token: True}
        assert runs.lose([other]) == set()

    def test_does_not_wait_for_another_that_a_transaction_is_just_ending(
        self, runs: Runs, rows: Rows, engine: Engine
    ) -> None:
        ending, going, gone = (begun(runs, id, 1) for id in rows.insert(3, payload=b"{}", **HANDED))
        before = rows.one(ending.id).locked_until
        gone_now = f"DELETE FROM {rows.tables.messages.schema}.outbox_runs WHERE id = '{ending.id}'"
        with engine.connect() as connection, connection.begin() as transaction:
            connection.execute(text(gone_now))
            assert runs.renew({ending: 100, going: 100}) == {ending.token: False, going.token: True}
            assert runs.lose([ending, gone]) == {gone.id}
            transaction.rollback()
        assert rows.one(ending.id).locked_until == before
        assert runs.renew({ending: 100}) == {ending.token: True}

    def test_that_keeps_losing_its_worker_dies(self, runs: Runs, store: Store, rows: Rows) -> None:
        [id] = rows.insert(payload=b"{}", **HANDED | {"attempts": store.settings.destinations["orders"].max_attempts})
        runs.lose([begun(runs, id)])
        assert drained(store) == {Step.DEAD: 1}
        assert (rows.one(id).status, rows.one(id).last_error_code) == ("dead", "worker_lost")

    def test_at_its_last_attempt_it_may_wait_in_the_broker_for_long(self, store: Store, rows: Rows) -> None:
        most = store.settings.destinations["orders"].max_attempts
        rows.insert(**HANDED | {"attempts": most, "locked_until": seconds_from_now(-1)})
        assert drained(store) == {Step.SENT: 1}


class TestEnd:
    def test_a_task_that_asked_not_to_be_recorded_is_discarded(self, runs: Runs, rows: Rows) -> None:
        [id] = rows.insert(payload=b"{}", **HANDED)
        assert runs.discard(begun(runs, id), "revoked", "by a person\0")
        [row] = rows.archived()
        assert (row.state, row.last_error_code, row.last_error) == ("discarded", "revoked", "by a person\\0")

    def test_failed_for_good_is_a_dead_letter(self, runs: Runs, rows: Rows) -> None:
        [id] = rows.insert(payload=b"{}", **HANDED)
        assert runs.dead(begun(runs, id), "ValueError", "no such order", "Traceback …")
        row = rows.one(id)
        assert (row.status, row.lease, row.begun, row.handed_at) == ("dead", None, False, None)
        assert (row.last_error_code, row.last_error) == ("ValueError", "no such order")
        assert row.history[-1]["traceback"] == "Traceback …"

    def test_a_lease_that_ran_out_does_not_end_a_run_that_nobody_took(self, runs: Runs, rows: Rows) -> None:
        [id] = rows.insert(payload=b"{}", **HANDED)
        run = begun(runs, id, 0.05)
        eventually(lambda: rows.state(id) == "retrying")
        assert runs.done(run)


def test_each_outbox_has_an_identity_that_stays(
    new_store: MakeStore, rows: Rows, runs: Runs, connection: Connection, schema: str
) -> None:
    found = runs.identity()
    assert found == runs.identity()
    other = f"{schema}_other"
    with connection.begin() as transaction:
        upgrade(connection, other)
        assert str(connection.scalar(text(f"SELECT {other}.outbox_identity()"))) != found
        transaction.rollback()
