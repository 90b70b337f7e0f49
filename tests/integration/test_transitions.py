"""The trace of a run notes every change of a row, and finds those that no row may make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, delete, func, insert, literal, null, select, text

from lab.trace import Trace
from outbox_tasks.destinations import Publisher
from outbox_tasks.model import Bundle, LeasedMessage, Outcome
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows, seconds_from_now

NEW: dict[str, Any] = {"lease": uuid4()}
OTHER: dict[str, Any] = {"lease": uuid4()}
HELD: dict[str, Any] = {**NEW, "locked_until": seconds_from_now(60)}
BEGUN: dict[str, Any] = {**HELD, "begun": True, "attempts": 1}
HANDED = {**HELD, "attempts": 1, "handed_at": func.now()}
RUNS = {**HANDED, "begun": True}
GONE = {"lease": null(), "begun": False, "handed_at": null()}
FAILED = {"last_error_code": "x"}
DEAD = {"status": "dead", **GONE}


@pytest.fixture
def trace(engine: Engine, rows: Rows, schema: str) -> Iterator[Trace]:
    made = Trace(engine, schema)
    made.install()
    yield made
    made.remove()


PLANTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a claim takes a lease that has not run out": (HELD, OTHER),
    "a claim takes what is not due": ({"locked_until": seconds_from_now(60)}, NEW),
    "a claim forgets that a send was never settled": (
        {**BEGUN, "locked_until": seconds_from_now(-1)},
        {**OTHER, "begun": False, "locked_until": seconds_from_now(60)},
    ),
    "a claim grants a lease that has run out": ({}, {**NEW, "locked_until": seconds_from_now(-1)}),
    "a begin does not count the attempt": (HELD, {"begun": True}),
    "a begin counts two attempts": (HELD, {"begun": True, "attempts": 2}),
    "a begin comes after the lease has run out": (
        {**HELD, "locked_until": seconds_from_now(-1)},
        {"begun": True, "attempts": 1, "locked_until": seconds_from_now(60)},
    ),
    "a begin without a claim": ({}, BEGUN),
    "a release of what is begun": (BEGUN, {**GONE, "locked_until": seconds_from_now(5)}),
    "a retry without a reason": (BEGUN, {"begun": False, "locked_until": seconds_from_now(60)}),
    "a retry whose lease has run out": (BEGUN, {"begun": False, **FAILED, "locked_until": seconds_from_now(-1)}),
    "a message dies for no reason": (BEGUN, DEAD),
    "a message that waits dies of its destination": ({}, {**DEAD, **FAILED}),
    "a dead letter keeps its lease": (BEGUN, {"status": "dead", **FAILED}),
    "a begun row without a lease": (HELD, {"lease": null(), "begun": True}),
    "a redrive keeps the attempts": (
        {"status": "dead", "attempts": 3, **FAILED},
        {"status": "pending", "locked_until": func.clock_timestamp()},
    ),
    "a dead letter is sent": ({"status": "dead", **FAILED}, {"status": "pending", **BEGUN}),
    "a run begins while another one runs": (RUNS, OTHER),
    "a run begins that was not handed over": ({}, RUNS),
    "a task dies because nobody began it": (
        {**HANDED, "locked_until": seconds_from_now(-1)},
        {**DEAD, "last_error_code": "not_started"},
    ),
    "a task is sent again while it waits": (HANDED, {**OTHER, "handed_at": null(), "attempts": 0}),
    "a settle hands over what runs": (RUNS, {"begun": False, "locked_until": seconds_from_now(60)}),
    "the payload changes under a lease": (BEGUN, {"payload": b"[]"}),
    "an error is forgotten": ({**BEGUN, **FAILED}, {**GONE, "attempts": 0, "last_error_code": null()}),
}  # fmt: skip


def test_a_change_that_no_row_may_make_is_found_with_the_life_of_its_row(trace: Trace, rows: Rows) -> None:
    trace.remove()  # the rows are in the middle of their lives
    ids = {bug: rows.insert(**before)[0] for bug, (before, _) in PLANTED.items()}
    trace.install()
    for bug, (_, after) in PLANTED.items():
        rows.change([ids[bug]], **after)
    lives = {id: life for wrong in trace.check().wrong for id, life in wrong.lives.items()}
    assert not [bug for bug, id in ids.items() if id not in lives]
    assert all(len(life) == 1 for life in lives.values())


def test_what_no_row_may_end_as_is_found(trace: Trace, rows: Rows) -> None:
    unsent, begun_as_written, twice, forgotten = rows.insert(), rows.insert(**BEGUN), rows.insert(), rows.insert()
    _archive(rows, *unsent, *twice)
    m = rows.tables.messages
    with rows.engine.begin() as connection:
        connection.execute(delete(m).where(m.c.id.in_([*unsent, *forgotten])))
    lives = {id: life for wrong in trace.check().wrong for id, life in wrong.lives.items()}
    assert {*lives} == {*unsent, *begun_as_written, *twice, *forgotten}
    written, gone = lives[forgotten[0]]
    assert "none → pending" in written
    assert "pending → deleted" in gone


def test_a_wrong_change_is_told_in_plain_words(trace: Trace, rows: Rows) -> None:
    rows.insert()
    rows.change(begun=True, **HELD)
    told = str(trace.check())
    assert "1 times, and there is no such transition: pending → begun: lease new, attempts +0" in told
    assert "none → pending" in told


@pytest.mark.parametrize("archive", ["move", "delete"])
def test_what_the_relay_people_and_writers_do_is_transitions(
    archive: str, new_store: MakeStore, rows: Rows, connection: Connection, schema: str, trace: Trace
) -> None:
    store = new_store(archive=archive)
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
    person.act("redrive", [UUID(edited)])
    person.act("purge", [UUID(dead)])
    person.act("discard", [UUID(unwanted)], states=["pending"])
    found = trace.check(archive=archive == "move")
    assert not found.wrong, str(found)
    assert {*found.counts} >= {"publish", "claim", "begin", "sent", "dead", "edit", "redrive", "discard · cancel"}


def _run(store: Store, publishers: Mapping[str, Publisher]) -> None:
    """Claim what is due, and send it."""
    bundles: list[Bundle] = []
    claim(store, bundles.extend, lambda: 0)
    for bundle in bundles:
        deliver(store, publishers, bundle)


class Refuses:
    """A destination that takes nothing."""

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        return [Outcome.dead("no", "no") for _ in messages]

    def close(self) -> None:
        """Nothing is open."""


def _archive(rows: Rows, *ids: str) -> None:
    """Write rows to the archive as sent, and leave them in the table."""
    m, a = rows.tables.messages, rows.tables.archive
    kept = [column.name for column in a.c if column.name in m.c]
    sent = select(*(m.c[name] for name in kept), literal("sent"), func.clock_timestamp()).where(m.c.id.in_(ids))
    with rows.engine.begin() as connection:
        connection.execute(insert(a).from_select([*kept, "state", "finished_at"], sent))
