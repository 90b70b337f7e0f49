"""What a publish refuses before it uses the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, ConfigDict
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column
from sqlmodel import Field, SQLModel

from outbox_tasks.errors import (
    InvalidArgument,
    InvalidMessage,
    MessageRefused,
    NoRoute,
    PayloadNotSerializable,
    PayloadTooLarge,
    UnsupportedDatabase,
    UnsupportedSession,
)
from outbox_tasks.model import Message
from outbox_tasks.outbox import Outbox
from outbox_tasks.writing.rows import rows
from outbox_tasks.writing.transactions import sqlstate
from tests.conftest import MakeSettings

NO_SESSION: Any = object()
SOON = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def outbox(settings: MakeSettings) -> Outbox:
    destinations = {
        "orders": {"url": "a://b", "max_bytes": 10},
        "audit": {"url": "a://b", "max_bytes": 20},
    }
    return Outbox(settings(nudge=False, destinations=destinations, routes={"order.*": ["orders"], "none.*": []}))


def pit() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


@dataclass
class Opaque:
    thing: object


class Sku(BaseModel):
    name: str


class Hero(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    name: str


class Base(MappedAsDataclass, DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    name: Mapped[str] = mapped_column(deferred=True)


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")
    it: Any


REFUSED: list[tuple[type[MessageRefused], str, dict[str, Any]]] = [
    (InvalidMessage, "key = 42", {"key": 42}),
    (InvalidMessage, "must be text", {"headers": {"a": 1}}),
    (InvalidMessage, "is not for the app", {"headers": {"celery-message": "{}"}}),
    (NoRoute, "Known: audit, orders", {"to": "ordres"}),
    (NoRoute, "42 is not a configured destination", {"to": 42}),
    (InvalidMessage, "names no destination", {"to": []}),
    (NoRoute, "no route names a destination", {"event_type": "other"}),
    (PayloadNotSerializable, "unknown type", {"payload": object()}),
    (PayloadNotSerializable, "nested too deeply", {"payload": pit()}),
    (PayloadNotSerializable, "make it a list", {"payload": {"ids": (n for n in (1, 2))}}),
    (PayloadNotSerializable, "Sku.name can't be", {"payload": Sku.model_construct()}),
    (PayloadNotSerializable, "make it a list", {"payload": Holder(it=1, undeclared=iter("ab"))}),
    (PayloadTooLarge, "orders", {"payload": "x" * 11, "to": ["audit", "orders"]}),
    (PayloadNotSerializable, "surrogate", {"payload": "\ud800"}),
    (PayloadNotSerializable, "surrogate", {"payload": {"a": "\ud800"}}),
    (InvalidMessage, "must be high, normal or low", {"priority": "urgent"}),
    (InvalidMessage, "can't be combined", {"delay": 1, "deliver_at": SOON}),
    # The database would refuse these.
    (InvalidMessage, "key", {"key": "half \ud800"}),
    (InvalidMessage, "headers", {"headers": {"a": "NUL \0"}}),
    (InvalidMessage, "aggregate_id", {"aggregate_id": 42}),
    (InvalidMessage, "content_type", {"content_type": "NUL \0"}),
    (InvalidMessage, "mapping of text", {"headers": ["a"]}),
    (InvalidMessage, "number of seconds", {"delay": float("nan")}),
    (InvalidMessage, "number of seconds", {"delay": 1e300}),
    (InvalidMessage, "number of seconds", {"delay": "1"}),
    (InvalidMessage, "time zone", {"deliver_at": "2030-01-01"}),
    (InvalidMessage, "must be a UUID", {"id": "not-a-uuid"}),
]


def test_a_message_that_can_not_be_delivered_is_refused(outbox: Outbox) -> None:
    assert outbox.publish_many(NO_SESSION, []) == []
    for kind, text, fields in REFUSED:
        message = {"event_type": "order.created", "payload": "x", **fields}
        with pytest.raises(kind) as caught:
            outbox.publish(NO_SESSION, **message)
        assert text in str(caught.value)
        with pytest.raises(kind):
            outbox.publish_many(NO_SESSION, [Message("order.created", "x"), Message(**message)])


WRONG: dict[str, Callable[[Outbox, Any], Any]] = {
    "messages": lambda outbox, value: outbox.publish_many(NO_SESSION, value),
    "messages ": lambda outbox, value: outbox.publish_many(NO_SESSION, [value]),
    "id": lambda outbox, value: outbox.cancel(NO_SESSION, value),
    "task": lambda outbox, value: outbox.delay(NO_SESSION, value),
    "celery": lambda outbox, value: Outbox(outbox.settings, celery=value),
    "app": lambda outbox, value: outbox.install(value),
    "app ": lambda outbox, value: outbox.supervise(value),
}


@pytest.mark.parametrize("argument", WRONG)
def test_an_argument_of_a_wrong_kind_is_refused_by_name(outbox: Outbox, argument: str) -> None:
    value = ["x"]
    with pytest.raises(InvalidArgument, match=rf"nothing was written: {argument.strip()} = .* must be "):
        WRONG[argument](outbox, value)


@pytest.mark.parametrize("session", [None, create_engine("sqlite://")])
def test_an_object_that_is_no_session_is_refused_by_its_type(outbox: Outbox, session: Any) -> None:
    with pytest.raises(UnsupportedSession, match="Pass a SQLAlchemy Session") as caught:
        outbox.publish(session, "order.created", "x")
    assert type(session).__qualname__ in caught.value.reason


def test_a_database_without_skip_locked_is_refused(outbox: Outbox) -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection, pytest.raises(UnsupportedDatabase, match="'sqlite'"):
        outbox.publish(connection, "order.created", "x")
    engine.dispose()


@pytest.mark.parametrize("kind", [Hero, Order])
@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: {"it": [it]}, lambda it: Holder(it=it), Opaque])
def test_a_mapped_object_that_is_not_loaded_is_loaded_or_refused(
    settings: MakeSettings, kind: Any, wrap: Callable[[Any], Any]
) -> None:
    engine = create_engine("sqlite://")
    kind.metadata.create_all(engine, [kind.__table__])
    made = kind(name="Ann")
    with Session(engine) as session:
        session.add(made)
        session.commit()  # its fields are expired
        _, [row] = rows(Message("order.created", wrap(made)), settings())
        said = row["text"]
        session.expire(made)
    assert '"id":1' in said
    assert '"name":"Ann"' in said
    with pytest.raises(PayloadNotSerializable, match=rf"{kind.__name__}\.id can't be read: .* not bound to a Session"):
        rows(Message("order.created", wrap(made)), settings())
    engine.dispose()


def test_the_state_of_a_driver_s_error_is_found_where_sqlalchemy_or_django_has_wrapped_it() -> None:
    of_driver, of_django = psycopg.errors.UniqueViolation(), RuntimeError("as Django raises it")
    of_django.__cause__ = of_driver
    states = [sqlstate(error) for error in (of_driver, DBAPIError("", {}, of_driver), of_django, ValueError())]
    assert states == ["23505"] * 3 + [None]
