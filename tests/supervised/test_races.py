"""Supervised tasks over the storage, when two sessions meet: one begins, one ends, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.takes import Batch
from outbox_tasks.supervised.store import Begun, Runs
from tests.conftest import eventually
from tests.storage.conftest import Box
from tests.storage.relaying import storage as storage
from tests.supervised.test_verbs import runs as runs
from tests.supervised.verbs import (
    SAME,
    anything_due,
    begin_of,
    begun,
    ending,
    hand_over,
    handed,
    run_of,
    run_out,
    sending,
)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@contextmanager
def somebody(box: Box) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that is open until it says otherwise."""
    with psycopg.connect(box.url) as connection:
        yield connection


def waits(box: Box) -> Callable[[], bool]:
    """Whether a statement on this outbox waits for a lock."""
    waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, %s) > 0)"
    return lambda: bool(box.value(waiting, box.schema))


def settle_of(batch: Batch) -> dict[str, Any]:
    """The parameters of a settle: the broker has all tasks of the batch."""
    verdicts = [{"seq": m.seq, "step": "handed", "wait": 100, "attempts": 1} for m in batch.messages]
    return {
        "token": batch.token,
        "destination": "orders",
        "blocks": True,
        "spared_outages": 10,
        "verdict": json.dumps(verdicts),
    }


@pytest.mark.parametrize("settled", [False, True], ids=["before the settle", "handed over"])
@pytest.mark.parametrize("first_commits", [False, True])
def test_of_two_copies_one_begins(
    box: Box, storage: Store, runs: Runs, pool: ThreadPoolExecutor, settled: bool, first_commits: bool
) -> None:
    box.write(1)
    if settled:
        hand_over(storage)
    else:
        sending(storage)
    with somebody(box) as other:
        assert len(box.run("supervised/begin.sql", other, **begin_of(run_of(box, 1)))) == 1
        second: Future[Begun | None] = pool.submit(runs.begin, run_of(box, 1), SAME, 60)
        eventually(waits(box))
        if first_commits:
            other.commit()
        else:
            other.rollback()
    assert (second.result(10) is None) is first_commits
    assert box.rows("SELECT state FROM outbox_runs") == [("running",)]
    box.check_books()


def test_two_tasks_of_a_batch_begin_at_once(box: Box, storage: Store, runs: Runs, pool: ThreadPoolExecutor) -> None:
    box.write(3)
    batch = sending(storage)
    with somebody(box) as other:
        box.run("supervised/begin.sql", other, **begin_of(run_of(box, 1)))
        second = pool.submit(begun, box, runs, 2)
        eventually(waits(box))
        other.commit()
    assert runs.done(second.result(10))
    assert box.value("SELECT seqs FROM outbox_leases") == [3]
    assert storage.leases.settle(batch.token, "orders", handed(batch))[0] == {3}
    box.check_books()


@pytest.mark.parametrize("count", [1, 2])
def test_a_copy_begins_while_the_relay_settles(
    box: Box, storage: Store, runs: Runs, pool: ThreadPoolExecutor, count: int
) -> None:
    box.write(count)
    batch = sending(storage)
    with somebody(box) as relay:
        assert len(box.run("deliver/settle.sql", relay, **settle_of(batch))) == count
        copy = pool.submit(begun, box, runs, 1)
        eventually(waits(box))
        relay.commit()
    assert runs.done(copy.result(10))
    box.check_books()


@pytest.mark.parametrize("count", [1, 2])
def test_the_relay_settles_while_a_copy_begins(box: Box, storage: Store, pool: ThreadPoolExecutor, count: int) -> None:
    box.write(count)
    batch = sending(storage)
    with somebody(box) as worker:
        assert len(box.run("supervised/begin.sql", worker, **begin_of(run_of(box, 1)))) == 1
        settled = pool.submit(storage.leases.settle, batch.token, "orders", handed(batch))
        eventually(waits(box))
        worker.commit()
    assert settled.result(10)[0] == {message.seq for message in batch.messages[1:]}
    assert box.value("SELECT state FROM outbox_runs WHERE seq = 1") == "running"
    box.check_books()


@pytest.mark.parametrize("commits", [False, True])
def test_a_run_that_is_just_ending_is_not_taken_back(box: Box, storage: Store, runs: Runs, commits: bool) -> None:
    box.write(1)
    hand_over(storage)
    run = begun(box, runs, 1)
    run_out(box)
    with somebody(box) as application:
        assert len(box.run("supervised/end.sql", application, **ending(run))) == 1
        assert hand_over(storage) == 0
        if not commits:
            application.rollback()
    assert hand_over(storage) == (0 if commits else 1)
    assert box.where(1) == (["sent"] if commits else ["runs"])
    box.check_books()


def test_a_run_that_is_just_taken_back_does_not_end(
    box: Box, storage: Store, runs: Runs, pool: ThreadPoolExecutor
) -> None:
    box.write(1)
    hand_over(storage)
    run = begun(box, runs, 1)
    run_out(box)
    with somebody(box) as claim:
        assert [row[1] for row in box.run("supervised/expire.sql", claim, most=10)] == ["worker_lost"]
        end = pool.submit(runs.done, run)
        eventually(waits(box))
        claim.commit()
    assert not end.result(10)
    assert box.where(1) == ["ready"]


def test_no_run_waits_for_another_that_a_transaction_is_just_ending(box: Box, storage: Store, runs: Runs) -> None:
    box.write(3)
    hand_over(storage)
    one, going, gone = (begun(box, runs, seq, 1) for seq in (1, 2, 3))
    with somebody(box) as application:
        box.run("supervised/end.sql", application, **ending(one))
        assert runs.renew({one: 100, going: 100}) == {one.token: False, going.token: True}
        assert runs.lose([one, gone]) == {gone.id}
        application.rollback()
    assert runs.renew({one: 100, one._replace(token=going.token): 100}) == {one.token: True}


@pytest.mark.parametrize("commits", [False, True])
def test_what_is_held_while_the_run_before_it_ends_is_not_forgotten(
    box: Box, storage: Store, runs: Runs, commits: bool
) -> None:
    box.write(1, key="a")
    hand_over(storage)
    run = begun(box, runs, 1)
    with somebody(box) as application:
        box.run("supervised/end.sql", application, **ending(run))
        box.write(2, key="a")
        assert hand_over(storage) == 0
        if not commits:
            application.rollback()
    if not commits:
        hand_over(storage)  # the mark goes
        assert not anything_due(storage)
        assert runs.done(run)
    hand_over(storage)
    assert [box.where(1), box.where(2)[:1]] == [["sent"], ["runs"]]
