"""The trace of a run notes every move of a message, and finds those that no message may make."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from lab.trace import Trace
from tests.conftest import Rows, seconds_from_now


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
