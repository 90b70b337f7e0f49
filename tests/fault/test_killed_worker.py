"""A publish worker that is killed between the send and the settle, by us or by what it sends."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from sqlalchemy import Engine, cast, func, literal, text
from sqlalchemy.dialects.postgresql import JSONB

from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import archive_locked, check, drained, waiting_for_locks


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


def test_a_message_that_kills_its_worker_ends_dead_and_takes_no_neighbour_with_it(
    relay: Relay, rows: Rows, stream: Stream
) -> None:
    relay.publish(destinations=limited(relay))
    relay.claim(destinations=limited(relay))
    relay.beat()
    relay.ready()
    [killer] = rows.insert(1, destination="told", payload=json.dumps({"die": True}).encode(), event_type="order.bad")
    neighbours = rows.insert(11, destination="told")
    eventually(lambda: rows.state(killer) == "dead", 60)
    drained(rows)
    row = rows.one(killer)
    assert (row.attempts, row.last_error_code) == (2, "unsettled")
    assert sorted(stream.ids()) == sorted(neighbours)  # those in its bundle were begun, and not sent
    assert {row.state for row in rows.shown() if str(row.id) != killer} == {"sent"}


def test_a_row_that_can_not_even_be_read_ends_dead_and_takes_no_neighbour_with_it(
    relay: Relay, rows: Rows, stream: Stream, engine: Engine, schema: str
) -> None:
    relay.publish(destinations=limited(relay))
    relay.claim(destinations=limited(relay))
    relay.beat()
    relay.ready()
    never = literal("infinity").cast(rows.tables.messages.c.created_at.type)
    deep = cast(func.repeat("[", 3000).concat(func.repeat("]", 3000)), JSONB)
    long = cast(literal('{"a": ' + "9" * 5000 + "}"), JSONB)
    rubbish = {
        *rows.insert(1, destination="told", created_at=never),
        *rows.insert(1, destination="told", headers=deep),
        *rows.insert(1, destination="told", headers=long),
    }
    neighbours = rows.insert(21, destination="told")

    def states() -> dict[str, str]:
        with engine.connect() as connection:
            found = connection.execute(text(f"SELECT id::text, state FROM {schema}.outbox_all"))
            return dict(row._tuple() for row in found)

    eventually(lambda: {states()[id] for id in rubbish} == {"dead"}, 60)
    eventually(lambda: {states()[id] for id in neighbours} == {"sent"}, 60)
    assert sorted(stream.ids()) == sorted(neighbours)


def limited(relay: Relay) -> dict[str, object]:
    """The destinations, with two attempts for `told`."""
    theirs = relay.values["destinations"]
    return {**theirs, "told": {**theirs["told"], "max_attempts": 2}}
