"""Supervised tasks over the storage: which copy begins, who may end a run, and what is free then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from outbox_tasks.model import Step, Verdict, content
from outbox_tasks.relay.retry import MAX_ERROR
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.supervised.store import Fence, Runs
from tests.claims import keep_house, take
from tests.conftest import MakeSettings
from tests.storage.conftest import AT_WORK, Box
from tests.storage.relaying import end_waits
from tests.storage.relaying import storage as storage
from tests.supervised.verbs import (
    SAME,
    anything_due,
    begun,
    ending,
    hand_over,
    handed,
    message,
    run_of,
    run_out,
    sending,
)

COPY = {"data": "WzFd", "headers": {"n": "2"}, "content_type": "text/x"}

ENDS: dict[str, tuple[Callable[[Runs, Fence], object], str]] = {
    "done": (lambda runs, run: runs.done(run, [message()]), "sent"),
    "discarded": (lambda runs, run: runs.discard(run, "ignored", "nobody\0wants it"), "discarded"),
    "failed": (lambda runs, run: runs.dead(run, "ValueError", "no such order", None, [message()]), "dead"),
    "retried": (lambda runs, run: runs.retry(run, COPY, 3600, "OSError", "busy"), "waiting"),
    "requeued": (lambda runs, run: runs.requeue(run), "runs"),
    "lost": (lambda runs, run: runs.lose([run]), "runs"),
}
"""What may end a run, and where the message is then."""

SPENT = ("discarded", "failed")
"""Those that count as an attempt."""


@pytest.fixture
def runs(next_settings: Settings) -> Iterator[Runs]:
    made = Runs.connect(next_settings)
    yield made
    made.close()


def everything(box: Box) -> list[Any]:
    tables = (*AT_WORK, "messages", "trouble", "journal")
    return [sorted(box.rows(f"SELECT t::text FROM outbox_{table} t")) for table in tables]


def test_a_task_is_at_work_until_it_has_run(box: Box, storage: Store, runs: Runs) -> None:
    box.write(1)
    assert hand_over(storage) == 1
    assert box.rows("SELECT state, token, attempts FROM outbox_runs") == [("handed over", None, 1)]
    run = begun(box, runs, 1)
    assert box.value("SELECT state FROM outbox_runs") == "running"
    assert runs.begin(run_of(box, 1), SAME, 60) is None, "a second copy"
    run_out(box)  # and nobody takes it
    box.connection.execute("INSERT INTO outbox_trouble (seq, code) VALUES (1, 'down')")
    assert runs.done(run, [message()], {"value": "7", "ran": 0.5})
    what = "history -> -1 ->> 'what'"
    assert box.rows(f"SELECT attempts, code, {what} FROM outbox_trouble") == [(0, "down", "returned")]
    assert [box.where(1), box.where(2)] == [["sent"], ["ready"]]
    assert box.rows("SELECT attempts, locked_by FROM outbox_archive") == [(1, "a worker")]
    box.check_books()


@pytest.mark.parametrize("how", ENDS)
def test_each_end_puts_the_message_in_one_place(box: Box, storage: Store, runs: Runs, how: str) -> None:
    end, place = ENDS[how]
    box.write(1)
    hand_over(storage)
    assert end(runs, begun(box, runs, 1))
    assert box.where(1) == [place]
    assert {attempts for [attempts] in box.rows("SELECT attempts FROM outbox_trouble")} <= {how in SPENT}
    box.check_books()


def test_a_dead_letter_keeps_the_end_of_a_long_traceback(box: Box, storage: Store, runs: Runs) -> None:
    box.write(1)
    hand_over(storage)
    assert runs.dead(begun(box, runs, 1), "ValueError", "x" * (MAX_ERROR + 1), "a call\n" * 1000 + "\0 the error")
    assert box.value("SELECT length(error) FROM outbox_trouble") == MAX_ERROR
    assert str(box.value("SELECT history -> -1 ->> 'traceback' FROM outbox_trouble")).endswith("the error")


@pytest.mark.parametrize("how", [*ENDS, "renewed"])
@pytest.mark.parametrize("whose", ["another run's", "of one that was given up", "of one that is over"])
def test_a_late_token_changes_nothing(box: Box, storage: Store, runs: Runs, how: str, whose: str) -> None:
    box.write(1)
    hand_over(storage)
    run = begun(box, runs, 1)
    if whose == "another run's":
        run = run_of(box, 1)
    elif whose == "of one that was given up":
        run_out(box)
        hand_over(storage)
        begun(box, runs, 1)
    else:
        assert runs.done(run)
    before = everything(box)
    late = (lambda runs, run: runs.renew({run: 60})) if how == "renewed" else ENDS[how][0]
    assert not late(runs, run)
    assert everything(box) == before


@pytest.fixture(params=["skip"])
def storage_of_tasks(request: pytest.FixtureRequest, box: Box, settings: MakeSettings) -> Iterator[Store]:
    """A storage whose tasks wait for a dead one of their key (`block`), or don't."""
    destinations = {"orders": {"url": "celery://?task=a.b", "confirm": "run", "on_dead": request.param}}
    made = Store.connect(settings(database_schema=box.schema, destinations=destinations))
    yield made
    made.close()


def redrive(box: Box, seq: int) -> None:
    nobody = {"until": "infinity", "entry": None, "person": "", "reason": "", "token": None, "duration": None}
    box.run("act/redrive.sql", ids=[run_of(box, seq).id], **nobody)


@pytest.mark.parametrize("how", ["done", "discarded", "failed"])
def test_a_key_is_free_once_the_run_before_it_is_over(box: Box, storage_of_tasks: Store, how: str) -> None:
    runs = Runs(storage_of_tasks.engine, storage_of_tasks.settings)
    box.write(2, key="a")
    assert hand_over(storage_of_tasks) == 1, "one task of a key at a time"
    run = begun(box, runs, 1)
    assert hand_over(storage_of_tasks) == 0
    assert (box.where(2), anything_due(storage_of_tasks)) == (["held"], False)
    assert ENDS[how][0](runs, run)
    assert anything_due(storage_of_tasks)
    hand_over(storage_of_tasks)
    assert box.where(2) == ["runs"]
    box.check_books()


@pytest.mark.parametrize("how", ["retried", "requeued", "lost"])
def test_a_run_that_comes_again_goes_before_the_others_of_its_key(
    box: Box, storage_of_tasks: Store, runs: Runs, how: str
) -> None:
    box.write(2, key="a")
    hand_over(storage_of_tasks)
    assert ENDS[how][0](runs, begun(box, runs, 1))
    for _ in range(2):
        hand_over(storage_of_tasks)
        assert box.where(2) == ["held"]
        end_waits(box)
    copy = content(b"[1]", {"n": "2"}) if how == "retried" else SAME
    run = run_of(box, 1)
    assert runs.begin(run, copy, 60) is not None
    assert runs.done(run)
    assert hand_over(storage_of_tasks) == 1
    assert [box.where(seq) for seq in (1, 2)] == [["sent"], ["runs"]]


def test_its_own_retry_says_what_the_new_copy_says(box: Box, storage: Store, runs: Runs) -> None:
    box.write(1)
    hand_over(storage)
    box.connection.execute("INSERT INTO outbox_trouble (seq, since) VALUES (1, now())")  # as a redrive does
    assert runs.retry(begun(box, runs, 1), COPY, 3600, "OSError", "busy")
    assert box.rows("SELECT since, code, error FROM outbox_trouble") == [(None, "OSError", "busy")]
    row = "SELECT payload, headers, content_type, deliver_at = due, w.attempts FROM outbox_messages m "
    assert box.rows(f"{row} JOIN outbox_waiting w USING (seq)") == [(b"[1]", {"n": "2"}, "text/x", True, 1)], (
        "it has run once"
    )
    end_waits(box)
    assert hand_over(storage) == 1
    assert runs.begin(run_of(box, 1), SAME, 60) is None, "a copy from before the retry"
    assert box.value("SELECT state FROM outbox_runs") == "handed over"
    assert runs.begin(run_of(box, 1), content(b"[1]", COPY["headers"]), 60) is not None  # type: ignore[arg-type]


def test_a_task_that_a_worker_does_not_know_comes_again_soon(box: Box, storage: Store, runs: Runs) -> None:
    box.write(1)
    hand_over(storage)
    id = run_of(box, 1).id
    assert not runs.unknown(id, "another content", "a worker")
    assert runs.unknown(id, SAME, "a worker")
    left = "SELECT date_part('epoch', locked_until - clock_timestamp()) FROM outbox_runs"
    assert box.value(left) <= 1
    assert not runs.unknown(id, SAME, "a worker"), "it is due sooner already"
    assert box.value("SELECT history -> 0 ->> 'what' FROM outbox_trouble") == "not known"
    run_out(box)
    assert hand_over(storage) == 1
    assert runs.unknown(id, SAME, "a worker")
    assert 1 < box.value(left) <= 2, "each time it waits twice as long"
    run = begun(box, runs, 1)
    assert not runs.unknown(id, SAME, "a worker"), "it runs elsewhere"
    assert runs.requeue(run)
    assert box.value("SELECT code FROM outbox_trouble") == "requeued"
    hand_over(storage)
    assert runs.unknown(id, SAME, "a worker")
    assert box.value(left) <= 2, "until one was begun"


class TestBeginBeforeTheRelayHasSettled:
    def test_it_leaves_the_others_of_its_batch_and_the_last_one_ends_the_lease(
        self, box: Box, storage: Store, runs: Runs
    ) -> None:
        box.write(3)
        batch = sending(storage)
        run = begun(box, runs, 2)
        assert box.value("SELECT seqs FROM outbox_leases") == [1, 3]
        assert storage.leases.settle(batch.token, "orders", handed(batch))[0] == {1, 3}
        assert box.rows("SELECT seq, state, attempts FROM outbox_runs ORDER BY seq") == [
            (1, "handed over", 1), (2, "running", 1), (3, "handed over", 1),
        ]  # fmt: skip
        assert runs.done(run)
        box.write(1)
        batch = sending(storage)
        assert runs.done(begun(box, runs, 4))
        assert box.value("SELECT count(*) FROM outbox_leases") == 0
        assert storage.leases.settle(batch.token, "orders", handed(batch))[0] == set()
        box.check_books()

    @pytest.mark.parametrize("settled", ["while it runs", "when it has ended", "when the next one runs"])
    def test_the_next_task_of_its_key_waits_for_its_end(
        self, box: Box, storage: Store, runs: Runs, settled: str
    ) -> None:
        def settle_now(when: str) -> None:
            if settled == when:
                assert storage.leases.settle(batch.token, "orders", handed(batch))[0] == set()

        box.write(1, key="a")
        batch = sending(storage)
        run = begun(box, runs, 1)
        box.write(1, key="a")
        assert hand_over(storage) == 0
        settle_now("while it runs")
        assert hand_over(storage) == 0
        assert runs.done(run)
        settle_now("when it has ended")
        assert hand_over(storage) == 1
        settle_now("when the next one runs")
        box.write(1, key="a")
        assert hand_over(storage) == 0
        assert [box.where(seq) for seq in (1, 2, 3)] == [["sent"], ["runs"], ["held"]]
        box.check_books()

    def test_the_broker_is_within_reach_and_the_task_was_heard_of(self, box: Box, storage: Store, runs: Runs) -> None:
        box.write(1)
        batch = sending(storage)
        outage = Verdict(batch.messages[0], Step.OUTAGE, 0.0, "down", "no answer")
        storage.leases.settle(batch.token, "orders", [outage])
        box.connection.execute("UPDATE outbox_trouble SET unheard = 1")
        end_waits(box)
        sending(storage)
        begun(box, runs, 1)
        assert box.rows("SELECT outages, unheard FROM outbox_trouble") == [(0, 0)]

    def test_nothing_begins_from_a_lease_whose_send_has_not(self, box: Box, storage: Store, runs: Runs) -> None:
        box.write(1)
        hand_over(storage)
        run_out(box)
        [single] = take(storage, {"orders": 1})
        assert runs.begin(run_of(box, 1), SAME, 60) is None
        assert storage.leases.begin(single.token, "orders")
        assert runs.begin(run_of(box, 1), SAME, 60) is not None


class TestRunsOut:
    def test_nobody_began_it(self, box: Box, storage: Store) -> None:
        """No attempt counts, and each time it waits twice as long, until a copy begins."""
        box.write(1)
        waits = []
        for _ in range(8):
            hand_over(storage)
            waits.append(round(box.value("SELECT date_part('epoch', locked_until - handed_at) FROM outbox_runs") / 100))
            assert box.rows("SELECT attempts FROM outbox_runs") == [(1,)]
            run_out(box)
        assert waits == [1, 2, 4, 8, 16, 32, 64, 64]
        keep_house(storage)
        assert box.rows("SELECT attempts, unheard, code FROM outbox_trouble") == [(0, 8, "not_started")]
        assert box.where(1) == ["ready"]

    def test_its_worker_was_lost(self, box: Box, storage: Store, runs: Runs) -> None:
        box.write(1)
        hand_over(storage)
        begun(box, runs, 1)
        run_out(box)
        hand_over(storage)
        assert box.rows("SELECT state, attempts FROM outbox_runs") == [("handed over", 2)]
        assert box.rows("SELECT attempts, unheard, code FROM outbox_trouble") == [(1, 0, "worker_lost")]
        run_out(box)
        hand_over(storage)
        assert box.rows("SELECT attempts, unheard, code FROM outbox_trouble") == [(1, 1, "worker_lost")]


@pytest.mark.parametrize("storage_of_tasks", ["block"], indirect=True)
def test_a_redriven_task_goes_before_what_it_held_up(box: Box, storage_of_tasks: Store) -> None:
    runs = Runs(storage_of_tasks.engine, storage_of_tasks.settings)
    box.write(2, key="a")
    hand_over(storage_of_tasks)
    assert runs.dead(begun(box, runs, 1), "ValueError", "no such order", None)
    box.write(1, key="a")
    assert hand_over(storage_of_tasks) == 0
    redrive(box, 1)
    for seq in (1, 2, 3):
        assert hand_over(storage_of_tasks) == 1
        assert [box.where(behind) for behind in range(seq + 1, 4)] == [["held"]] * (3 - seq)
        assert runs.done(begun(box, runs, seq))
    box.check_books()


@pytest.mark.parametrize("how", ["done", "retried"])
def test_a_task_may_be_redriven_while_a_later_one_runs(box: Box, storage_of_tasks: Store, how: str) -> None:
    runs = Runs(storage_of_tasks.engine, storage_of_tasks.settings)
    box.write(3, key="a")
    hand_over(storage_of_tasks)
    assert runs.dead(begun(box, runs, 1), "ValueError", "no such order", None)
    assert hand_over(storage_of_tasks) == 1
    later = begun(box, runs, 2)
    redrive(box, 1)
    assert hand_over(storage_of_tasks) == 0
    assert ENDS[how][0](runs, later)
    assert hand_over(storage_of_tasks) == (2 if how == "done" else 1), "the first, and what follows the later"
    assert [box.where(seq)[0] for seq in (1, 3)] == ["runs", "held"]
    box.check_books()


class TestInTheTransactionOfTheApplication:
    @pytest.mark.parametrize("to", ["", " TO here"], ids=["rollback", "savepoint"])
    def test_a_rollback_undoes_the_end(self, box: Box, storage: Store, runs: Runs, to: str) -> None:
        box.write(1, key="a")
        hand_over(storage)
        run = begun(box, runs, 1)
        box.write(1, key="a")
        hand_over(storage)
        before = everything(box)
        with psycopg.connect(box.url) as application:
            application.execute("SAVEPOINT here")
            assert len(box.run("supervised/end.sql", application, **ending(run, message()))) == 1
            assert box.run("supervised/completed.sql", application, id=run.id, committed=False) == [(True,)]
            application.execute(f"ROLLBACK{to}".encode())
            assert box.run("supervised/completed.sql", application, id=run.id, committed=False) == []
            assert everything(box) == before
            assert len(box.run("supervised/end.sql", application, **ending(run))) == 1
            assert box.run("supervised/end.sql", application, **ending(run)) == []
        for own in (True, False):  # if not, another run of the task has ended it
            assert bool(box.run("supervised/completed.sql", box.connection, id=run.id, committed=own)) is own
        assert [box.where(seq) for seq in (1, 2)] == [["sent"], ["held"]]
        assert hand_over(storage) == 1
        box.check_books()

    @pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
    def test_what_was_held_after_its_snapshot_is_free_too(
        self, box: Box, storage: Store, runs: Runs, level: str
    ) -> None:
        box.write(1, key="a")
        hand_over(storage)
        run = begun(box, runs, 1)
        with psycopg.connect(box.url) as application:
            application.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            application.execute("SELECT 1")
            box.write(1, key="a")
            assert hand_over(storage) == 0
            assert box.where(2) == ["held"]
            assert len(box.run("supervised/end.sql", application, **ending(run))) == 1
        assert anything_due(storage)
        assert hand_over(storage) == 1
        assert box.where(2) == ["runs"]
        assert not anything_due(storage)
