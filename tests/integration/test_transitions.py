"""The trace of a run notes every move of a message, and finds those that no message may make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from lab.moves import MOVES
from lab.trace import Trace
from outbox_tasks.destinations import Publisher
from outbox_tasks.model import LeasedMessage, Outcome, Single
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from tests.claims import take
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.integration.acting import acted


@pytest.fixture
def trace(engine: Engine, rows: Rows, schema: str) -> Iterator[Trace]:
    made = Trace(engine, schema)
    made.install()
    yield made
    made.remove()


def test_a_move_that_no_message_may_make_is_found_with_its_life(trace: Trace, rows: Rows) -> None:
    trace.remove()  # the message is in the middle of its life
    [id] = rows.insert(status="dead")
    trace.install()
    lease = {"lease": uuid4(), "locked_until": seconds_from_now(60), "begun": True, "attempts": 1}
    rows.change(status="pending", **lease)
    [wrong] = trace.check().wrong
    assert (wrong.move, [*wrong.lives]) == (("dead", "begun"), [id])


def test_a_message_in_no_place_or_in_two_is_found(trace: Trace, rows: Rows, schema: str) -> None:
    forgotten, twice = rows.insert(), rows.insert()
    left = f"DELETE FROM {schema}.outbox_ready r USING {schema}.outbox_messages m WHERE m.seq = r.seq AND m.id = :id"
    died = f"INSERT INTO {schema}.outbox_dead (seq, kin, destination) SELECT seq, '', '' FROM {schema}.outbox_messages"
    with rows.engine.begin() as connection:
        connection.execute(text(left), {"id": forgotten[0]})
        connection.execute(text(f"{died} WHERE id = :id"), {"id": twice[0]})
    found = {wrong.move: [*wrong.lives] for wrong in trace.check().wrong}
    assert found == {("ready", "none"): forgotten, ("none (it was ready)", "dead"): twice}


def test_what_the_relay_people_and_writers_do_is_transitions(
    new_store: MakeStore, rows: Rows, connection: Connection, schema: str, trace: Trace
) -> None:
    store = new_store()
    same_id = text(f"SELECT {schema}.outbox_publish('e', '{{}}', destination => 'orders', id => '{uuid4()}')")
    with closing(Publishers(store.settings)) as publishers:
        for _ in range(2):
            connection.execute(same_id)
            connection.commit()
            _run(store, publishers)
    [dead], [edited], [unwanted] = rows.insert(), rows.insert(), rows.insert(destination="elsewhere")
    _run(store, {"orders": Refuses()})
    person = Operator(store, "ann", "tidy up")
    person.edit(UUID(edited), b"{}", b"[]", "application/json")
    acted(store, "redrive", [edited])
    acted(store, "purge", [dead])
    acted(store, "discard", [unwanted], states=["pending"])
    found = trace.check()
    assert not found.wrong, str(found)
    known = {"publish", "take singly", "begin", "settle: sent or discarded", "settle: dead", "redrive", "purge"}
    assert {*found.counts} == known | {MOVES["ready", "discarded"]}


def _run(store: Store, publishers: Mapping[str, Publisher]) -> None:
    """Take what is due singly, and send it."""
    _publish(store, publishers, take(store, {"orders": 9}))


def _publish(store: Store, publishers: Mapping[str, Publisher], singles: Sequence[Single]) -> None:
    for single in singles:
        publish(store, publishers, single.destination, single.token, Listener())


class Refuses:
    """A destination that takes nothing."""

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        return [Outcome.dead("no", "no") for _ in messages]

    def close(self) -> None:
        """Nothing is open."""
