"""A publish worker that is killed between the send and the settle, by us or by what it sends."""

from __future__ import annotations

import json

import pytest
from celery.platforms import EX_FAILURE
from sqlalchemy import Engine, cast, func, literal, text
from sqlalchemy.dialects.postgresql import JSONB

from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import LONG, UNHURRIED, Here, archive_locked, check, drained, waiting_for_locks


@pytest.mark.parametrize("victim", ["worker", "pool process", "pool process, by the time limit"])
def test_messages_that_a_killed_process_sent_but_did_not_settle_are_soon_sent_again_each_alone_with_the_cause(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str, victim: str
) -> None:
    worker = relay.publish(pool="solo" if victim == "worker" else "prefork", **LONG)
    relay.claim(**LONG)
    relay.beat(**LONG)
    relay.ready()
    with archive_locked(engine, schema):
        ids = rows.insert(12)  # four bundles of three
        eventually(lambda: len(stream) >= 3)
        eventually(lambda: waiting_for_locks(engine, schema))
        unsettled = {str(row.id) for row in rows.hot() if row.begun}
        if victim == "worker":
            worker.kill()
        else:
            [process] = worker.container.pool()
            process.kill() if victim == "pool process" else process.suspend()
        eventually(lambda: not waiting_for_locks(engine, schema))  # the server has given up its settle
    if victim == "worker":
        worker.restart()
    drained(rows, 90)
    assert check(rows, stream, ids) == len(unsettled) == 3
    ends = {str(row.id): (row.attempts, row.last_error_code) for row in rows.archived()}
    assert ends == {id: (2, "unsettled") if id in unsettled else (1, None) for id in ids}
    for id in unsettled:
        assert f"outbox_tasks.publish[{id}] received" in worker.logs()


def test_a_worker_that_sigterm_stops_sends_nothing_twice(relay: Relay, rows: Rows, stream: Stream) -> None:
    small = {"bundle_size": 10, "max_in_flight": 500, **UNHURRIED}
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
    drained(rows, 90)
    assert check(rows, stream, ids) == 0
    assert {row.attempts for row in rows.archived()} == {1}


def test_a_worker_that_failed_ends_even_if_it_can_not_read_its_last_results(
    relay: Relay, rows: Rows, here: Here
) -> None:
    worker = relay.publish()
    relay.ready()
    rows.insert(1, destination="told", payload=json.dumps({"garble": True}).encode())
    here.claim()
    eventually(lambda: "Unrecoverable error" in worker.logs())
    assert worker.container.child.wait(relay.settings.hard_time_limit + 20) == EX_FAILURE


def test_a_message_that_kills_its_worker_or_can_not_be_read_ends_dead_and_its_neighbours_are_sent(
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
