"""For every kind of session and every end of its transaction, exactly the committed messages exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Delete, Engine, Integer, MetaData, Table, Update, create_engine
from sqlalchemy.orm import Session

from outbox_tasks import Inbox, Message, Outbox
from outbox_tasks.database.schema import tables
from outbox_tasks.errors import NotInTransaction, ReusedId, SchemaMissing, UnsupportedSession
from outbox_tasks.model import uuid7
from outbox_tasks.testing.store import seen_within
from tests.conftest import MakeSettings, Rows, make_tables, own_schema
from tests.integration.sessions import KINDS, Driver, driver


@dataclass(frozen=True)
class Savepoint:
    steps: tuple[Any, ...]
    end: str


PUBLISH = "publish"
PROGRAMS: list[tuple[tuple[Any, ...], str]] = [
    ((PUBLISH,), "commit"),
    ((PUBLISH, PUBLISH), "rollback"),
    ((PUBLISH,), "close"),
    ((PUBLISH, Savepoint((PUBLISH,), "undo"), PUBLISH), "commit"),
    ((PUBLISH, Savepoint((PUBLISH,), "release"), PUBLISH), "rollback"),
    ((PUBLISH, Savepoint((PUBLISH, Savepoint((PUBLISH,), "release")), "undo")), "commit"),
    ((Savepoint((PUBLISH, Savepoint((PUBLISH,), "undo")), "release"), PUBLISH), "commit"),
]


@pytest.fixture(scope="module")
def schema(engine: Engine) -> Iterator[str]:
    """One for all: there are hundreds of tests, each closes its sessions, and no relay is at work."""
    with own_schema(engine) as name:
        make_tables(engine, name)
        yield name


@pytest.fixture
def rows(engine: Engine, schema: str) -> Iterator[Rows]:
    """Those of the test; gone afterwards."""
    made = Rows(engine, schema)
    yield made
    made.clear()


@pytest.fixture(params=KINDS)
def driven(request: pytest.FixtureRequest, outbox: Outbox, engine: Engine) -> Iterator[Driver]:
    with driver(request.param, outbox, engine) as made:
        yield made


def perform(driven: Driver, steps: tuple[Any, ...]) -> list[UUID]:
    """Run the steps; returns the ids that a commit leaves."""
    kept: list[UUID] = []
    for each in steps:
        if each == PUBLISH:
            kept += driven.publish(Message("order.created", {"id": len(kept)}))
        else:
            driven.savepoint()
            inside = perform(driven, each.steps)
            getattr(driven, each.end)()
            kept += inside if each.end == "release" else []
    return kept


def found(rows: Rows) -> set[UUID]:
    ids = [row.id for row in rows.hot()]
    assert len(ids) == len(set(ids))
    return set(ids)


def test_exactly_the_committed_messages_exist(driven: Driver, rows: Rows) -> None:
    """With several transactions one after the other, in one session."""
    expected: set[UUID] = set()
    for steps, end in PROGRAMS:
        driven.begin()
        kept = perform(driven, steps)
        assert found(rows) == expected, "visible to nobody else before the commit"
        getattr(driven, "rollback" if end == "close" and not driven.reusable else end)()
        expected |= set(kept) if end == "commit" else set()
    assert found(rows) == expected


def test_outside_of_a_transaction_publish_is_refused(driven: Driver, rows: Rows) -> None:
    with pytest.raises(NotInTransaction, match=r"Nothing was written for 'order\.created'"):
        driven.publish(Message("order.created", {}))
    driven.begin()
    driven.publish(Message("order.created", {}))
    driven.commit()
    with pytest.raises(NotInTransaction):
        driven.publish(Message("order.created", {}))
    assert len(found(rows)) == 1


def test_a_message_is_taken_back_from_each_destination(driven: Driver, settings: MakeSettings, rows: Rows) -> None:
    places = {name: {"url": "a://b"} for name in ("orders", "mails")}
    driven.outbox = Outbox(settings(nudge=False, destinations=places))
    driven.begin()
    [id] = driven.publish(Message("order.created", {}, delay=3600, to=[*places]))
    driven.commit()
    for end, taken in (("rollback", True), ("commit", True), ("commit", False)):
        driven.begin()
        assert driven.cancel(id) is taken
        getattr(driven, end)()
    assert found(rows) == set()
    assert {row.destination for row in rows.archived()} == {*places}


def test_an_error_of_the_database_rolls_the_transaction_back(driven: Driver, rows: Rows) -> None:
    """The call raises it or, if the insert waits for it, the commit."""
    id = uuid7()
    driven.begin()
    driven.publish(Message("order.created", {"id": 1}, id=id))
    driven.commit()
    driven.begin()
    driven.publish(Message("order.created", {"id": 2}))
    with pytest.raises(ReusedId, match=str(id)):  # noqa: PT012 - at the one or the other
        driven.publish(Message("order.created", {"id": 3}, id=id))
        driven.commit()
    driven.close()
    assert found(rows) == {id}


FULL: dict[str, Any] = {
    "key": "k", "headers": {"a": "é"}, "aggregate_type": "order", "aggregate_id": "5", "priority": "high", "delay": 1.5,
}  # fmt: skip


def test_one_message_is_stored_as_many_are(driven: Driver, rows: Rows) -> None:
    for payload, key in product(({"name": "Zoë→"}, b"\0\xff", "%s\0"), ("k", "k→")):
        message = Message("order.created", payload, **{**FULL, "key": key})
        driven.begin()
        one = driven.publish(message)
        many = driven.publish(message, Message("order.created", payload))
        driven.commit()
        stored = {row.id: row for row in rows.hot()}
        first, second = stored[one[0]], stored[many[0]]
        own = ("id", "seq", "created_at", "locked_until", "deliver_at")
        assert [getattr(first, name) for name in first._fields if name not in own] == [
            getattr(second, name) for name in second._fields if name not in own
        ]
        assert (first.key, first.headers, first.priority, first.deliver_at) == (key, {"a": "é"}, 1, first.locked_until)
        assert stored[many[1]].deliver_at is None


@pytest.mark.parametrize("kind", ["Session", "AsyncSession asyncpg", "Django"])
def test_without_the_tables_publish_raises_schema_missing(settings: MakeSettings, engine: Engine, kind: str) -> None:
    nowhere = Outbox(settings(nudge=False, database_schema="outbox_nowhere"))
    with driver(kind, nowhere, engine) as driven:
        driven.begin()
        with pytest.raises(SchemaMissing):  # noqa: PT012 - at the one or the other
            driven.publish(Message("order.created", {}))
            driven.commit()
    with Session(engine) as session, session.begin(), pytest.raises(SchemaMissing, match="Run `outbox-tasks init`"):
        Inbox("billing", schema="outbox_nowhere").first(session, "1")


def test_everything_is_written_where_a_session_with_a_replica_writes(
    outbox: Outbox, engine: Engine, rows: Rows
) -> None:
    """Its sessions read from a replica, which takes no writes, as SQLAlchemy's documentation has them."""
    replica = create_engine(engine.url.update_query_dict({"options": "-c default_transaction_read_only=on"}))

    class Routing(Session):
        def get_bind(self, mapper: Any = None, clause: Any = None) -> Engine:  # type: ignore[override]
            return engine if self._flushing or isinstance(clause, Update | Delete) else replica

    inbox = Inbox("billing", schema=outbox.settings.database_schema)
    with Routing() as session, session.begin():
        id = outbox.publish(session, "order.created", {})
        assert inbox.first(session, id)
        assert [message.id for message in seen_within(session, rows.tables, 0)] == [id]
    assert found(rows) == {id}
    with Routing() as session, session.begin():
        assert outbox.cancel(session, id)
        assert not inbox.first(session, id)
    replica.dispose()


class TestSeveralEngines:
    def test_a_session_that_can_not_choose_raises_an_error(self, outbox: Outbox, engine: Engine, rows: Rows) -> None:
        """One that is told where the table is, or a connection to the right engine, works."""
        orders = Table("orders", MetaData(), Column("id", Integer))
        with Session(binds={orders: engine}) as session, session.begin():
            with pytest.raises(UnsupportedSession, match=r"no engine for outbox_\w+: .* pass the connection"):
                outbox.publish(session, "order.created", {})
            ids = {outbox.publish(session.connection(bind_arguments={"clause": orders}), "order.created", {})}
        elsewhere = engine.execution_options()
        with (
            Session(binds={orders: elsewhere, tables(outbox.settings.database_schema).messages: engine}) as session,
            session.begin(),
        ):
            ids.add(outbox.publish(session, "order.created", {}))
        assert found(rows) == ids
