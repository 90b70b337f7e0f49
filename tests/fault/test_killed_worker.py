"""A publish worker that is killed between the send and the settle, by us or by what it sends."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from sqlalchemy import Engine, cast, func, literal, text
from sqlalchemy.dialects.postgresql import JSONB

from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import LONG, archive_locked, check, drained, waiting_for_locks


@pytest.mark.parametrize("victim", ["pool child", "worker"])
def test_what_was_sent_and_not_settled_is_sent_again_with_the_cause_and_alone(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str, victim: str
) -> None:
    worker = relay.publish(pool="solo" if victim == "worker" else "prefork")
    relay.claim()
    relay.beat()
    relay.ready()
    with archive_locked(engine, schema):
        ids = rows.insert(12)  # four bundles of three
        eventually(lambda: len(stream) >= 3)
        eventually(lambda: waiting_for_locks(engine, schema))
        if victim == "worker":
            worker.kill()
        else:
            [child] = worker.container.pool()
            child.kill()
        unsettled = [row for row in rows.hot() if row.begun]
        eventually(lambda: not waiting_for_locks(engine, schema))
    if victim == "worker":
        worker.restart()
    drained(rows)
    assert check(rows, stream, ids) >= 3
    delivered = Counter(stream.ids())
    assert unsettled
    for row in unsettled:
        assert delivered[str(row.id)] == 2
        assert f"outbox_tasks.publish[{row.id}] received" in worker.logs()
    archived = {row.id: row for row in rows.archived()}
    assert {(archived[row.id].attempts, archived[row.id].last_error_code) for row in unsettled} == {(2, "unsettled")}
    assert not {id for id, count in delivered.items() if count > 1} - {str(row.id) for row in unsettled}


@pytest.mark.parametrize("by", ["somebody", "the time limit"])
def test_what_a_killed_process_of_a_pool_held_does_not_wait_for_its_lease(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str, by: str
) -> None:
    worker = relay.publish(**LONG)
    relay.claim(**LONG)
    relay.beat(**LONG)
    relay.ready()
    with archive_locked(engine, schema):
        ids = rows.insert(12)
        eventually(lambda: any(row.begun for row in rows.hot()))  # its settle waits for the archive
        eventually(lambda: waiting_for_locks(engine, schema))
        [child] = worker.container.pool()
        if by == "somebody":
            child.kill()
        else:
            child.suspend()
        eventually(lambda: not waiting_for_locks(engine, schema))  # the server has given up its settle
    drained(rows, 60)
    assert check(rows, stream, ids) == 3
    assert Counter(row.last_error_code for row in rows.archived()) == {None: 9, "unsettled": 3}


def test_what_a_killed_worker_held_does_not_wait_for_its_lease_once_another_starts_in_its_place(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str
) -> None:
    worker = relay.publish(pool="solo", **LONG)
    relay.claim(**LONG)
    relay.beat(**LONG)
    relay.ready()
    with archive_locked(engine, schema):
        ids = rows.insert(12)
        eventually(lambda: any(row.begun for row in rows.hot()))  # its settle waits for the archive
        eventually(lambda: waiting_for_locks(engine, schema))
        worker.kill()
        eventually(lambda: not waiting_for_locks(engine, schema))
    worker.restart()
    drained(rows, 60)
    assert check(rows, stream, ids) == 3


def test_a_worker_that_is_stopped_in_order_repeats_nothing(relay: Relay, rows: Rows, stream: Stream) -> None:
    small = {"bundle_size": 10, "max_in_flight": 500}
    worker = relay.publish(concurrency=2, **small)
    relay.claim(**small)
    relay.beat(**small)
    relay.ready()
    ids = rows.insert(5000)
    eventually(lambda: len(stream) > 250)
    worker.kill("SIGTERM")
    worker.container.child.wait(60)  # billiard's pool may wait 30 s for a last result that nobody reads any more
    assert len(stream) < 5000
    worker.restart()
    drained(rows)
    assert check(rows, stream, ids) == 0
    assert {row.attempts for row in rows.archived()} == {1}


def test_what_kills_its_worker_or_can_not_even_be_read_ends_dead_and_takes_no_neighbour_with_it(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str
) -> None:
    relay.publish(destinations=limited(relay))
    relay.claim(destinations=limited(relay))
    relay.beat()
    relay.ready()
    [killer] = rows.insert(1, destination="told", payload=json.dumps({"die": True}).encode())
    neighbours = rows.insert(10, destination="told")
    never = literal("infinity").cast(rows.tables.messages.c.created_at.type)
    deep = cast(func.repeat("[", 3000).concat(func.repeat("]", 3000)), JSONB)
    long = cast(literal('{"a": ' + "9" * 5000 + "}"), JSONB)
    unreadable = {
        *rows.insert(1, destination="told", headers=deep),
        *rows.insert(1, destination="told", headers=long),
    }
    neighbours += rows.insert(10, destination="told")
    neighbours += rows.insert(1, destination="told", created_at=never)  # a time that Python has not; but no obstacle

    def ends() -> dict[str, tuple[str, int, str | None]]:
        columns = "id::text, state, attempts, last_error_code"
        with engine.connect() as connection:  # not all of them can be read as Python values
            found = connection.execute(text(f"SELECT {columns} FROM {schema}.outbox_all"))
            return {id: (state, attempts, code) for id, state, attempts, code in found}

    eventually(lambda: {ends()[id][0] for id in (killer, *unreadable)} == {"dead"}, 60)
    eventually(lambda: {ends()[id][0] for id in neighbours} == {"sent"}, 60)
    assert ends()[killer][1:] == (2, "unsettled")
    assert {ends()[id][1:] for id in unreadable} <= {(1, "bad_headers"), (2, "bad_headers")}
    assert sorted(stream.ids()) == sorted(neighbours)  # those in their bundles were begun, and not sent


def limited(relay: Relay) -> dict[str, object]:
    """The destinations, with two attempts for `told`."""
    theirs = relay.values["destinations"]
    return {**theirs, "told": {**theirs["told"], "max_attempts": 2}}
