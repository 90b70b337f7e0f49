"""What a publish refuses before it uses the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from sqlalchemy import create_engine
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


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        pytest.param({"key": 42}, InvalidMessage, "key = 42", id="number as key"),
        pytest.param({"headers": {"a": 1}}, InvalidMessage, "must be text", id="number in headers"),
        pytest.param({"headers": {"celery-message": "{}"}}, InvalidMessage, "is not for the app", id="a forged task"),
        pytest.param({"to": "ordres"}, NoRoute, "Known: audit, orders", id="unknown destination"),
        pytest.param({"to": []}, InvalidMessage, "names no destination", id="to nowhere"),
        pytest.param({"event_type": "other"}, NoRoute, "no route names a destination", id="no route"),
        pytest.param({"payload": object()}, PayloadNotSerializable, "unknown type", id="unserialisable"),
        pytest.param({"payload": pit()}, PayloadNotSerializable, "nested too deeply", id="too deep"),
        pytest.param(
            {"payload": {"ids": (n for n in (1, 2))}}, PayloadNotSerializable, "make it a list", id="generator"
        ),
        pytest.param(
            {"payload": Sku.model_construct()}, PayloadNotSerializable, "Sku.name can't be", id="half a model"
        ),
        pytest.param(
            {"payload": Holder(it=1, undeclared=iter("ab"))}, PayloadNotSerializable, "make it a list", id="extra field"
        ),
        pytest.param({"payload": "x" * 11, "to": ["audit", "orders"]}, PayloadTooLarge, "orders", id="large for one"),
        pytest.param({"payload": "\ud800"}, PayloadNotSerializable, "surrogate", id="half a character"),
        pytest.param({"delay": 1, "deliver_at": SOON}, InvalidMessage, "can't be combined", id="both times"),
    ],
)
def test_a_message_that_can_not_be_delivered_is_refused(
    outbox: Outbox, fields: dict[str, Any], kind: type[MessageRefused], text: str
) -> None:
    message = {"event_type": "order.created", "payload": "x", **fields}
    with pytest.raises(kind) as caught:
        outbox.publish(NO_SESSION, **message)
    assert text in str(caught.value)
    with pytest.raises(kind):
        outbox.publish_many(NO_SESSION, [Message("order.created", "x"), Message(**message)])


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "half \ud800"},
        {"headers": {"a": "NUL \0"}},
        {"aggregate_id": 42},
        {"content_type": "NUL \0"},
        {"headers": ["a"]},
        {"delay": float("nan")},
        {"delay": 1e300},
        {"delay": "1"},
        {"deliver_at": "2030-01-01"},
        {"id": "not-a-uuid"},
    ],
    ids=repr,
)
def test_a_value_that_the_database_would_refuse_is_refused(outbox: Outbox, fields: dict[str, Any]) -> None:
    with pytest.raises(MessageRefused):
        outbox.publish(NO_SESSION, "order.created", "x", **fields)


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
