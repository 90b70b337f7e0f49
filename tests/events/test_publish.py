"""Payloads of declared events are checked at publish, and stored as the model's JSON."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field, PlainSerializer
from pydantic.dataclasses import dataclass as pydantic_dataclass
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from outbox_tasks.errors import InvalidArgument, InvalidEvent
from outbox_tasks.model import Message
from outbox_tasks.outbox import Outbox
from tests.conftest import MakeSettings, Rows


class OfPydantic(BaseModel):
    number: int = Field(serialization_alias="no", validation_alias="no")
    due: date
    tags: dict[int, str] = {}


@dataclass
class OfPython:
    no: Annotated[int, Field(ge=1)]
    due: date
    tags: dict[int, str]


@pydantic_dataclass
class OfBoth:
    no: int
    due: date
    tags: dict[int, str]


class OfTyping(TypedDict):
    no: int
    due: date
    tags: dict[int, str]


class OfMsgspec(msgspec.Struct):
    no: int
    due: date
    tags: dict[int, str] = {}


DUE = date(2027, 1, 2)
MODELS = [OfPydantic, OfPython, OfBoth, OfTyping, OfMsgspec]
STORED = {"no": 7, "due": "2027-01-02", "tags": {"1": "new"}}


@pytest.fixture
def outbox(settings: MakeSettings, rows: Rows) -> Outbox:
    return Outbox(settings())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "given", [STORED, lambda model: model(no=7, due=DUE, tags={1: "new"})], ids=["values", "instance"]
)
def test_values_and_instances_are_stored_as_the_json_of_the_model(
    outbox: Outbox, rows: Rows, engine: Engine, model: Any, given: Any
) -> None:
    outbox.event("order.created", model)
    payload = given(model) if callable(given) else given
    with Session(engine) as session, session.begin():
        outbox.publish(session, "order.created", payload)
        outbox.publish_many(session, [Message("order.created", payload), Message("not.declared", {"no": "seven"})])
    assert [json.loads(row.payload) for row in rows.hot()] == [STORED, STORED, {"no": "seven"}]
    assert {row.content_type for row in rows.hot()} == {"application/json"}


@pytest.mark.parametrize("model", MODELS)
def test_a_payload_that_does_not_fit_is_refused_before_anything_is_written(
    outbox: Outbox, rows: Rows, engine: Engine, model: Any
) -> None:
    outbox.event("order.created", model)
    with Session(engine) as session, session.begin():
        for payload in ({**STORED, "no": "s3cret"}, {"no": 7}, None, "text", [1]):
            with pytest.raises(
                InvalidEvent, match=rf"^The payload of 'order.created' .* fit {model.__name__}, .*Correct"
            ):
                outbox.publish_many(session, [Message("not.declared", {}), Message("order.created", payload)])
        with pytest.raises(InvalidEvent) as refused:
            outbox.publish(session, "order.created", {**STORED, "no": "s3cret"})

    async def in_an_async_connection() -> None:
        asynchronous = create_async_engine(engine.url)
        async with asynchronous.begin() as connection:
            with pytest.raises(InvalidEvent):
                await outbox.publish_many(connection, [Message("order.created", {"no": 7})])
        await asynchronous.dispose()

    asyncio.run(in_an_async_connection())
    assert "no" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert rows.hot() == []


@pytest.mark.parametrize(
    ("model", "instance"),
    [
        (OfPython, OfPython("seven", DUE, {})),  # type: ignore[arg-type]
        (OfPython, OfPython(0, DUE, {})),
        (OfPydantic, OfPydantic.model_construct(number="seven", due=DUE)),
        (OfMsgspec, OfMsgspec("seven", DUE)),  # type: ignore[arg-type]
    ],
    ids=["dataclass: type", "dataclass: bound", "pydantic: not checked", "msgspec"],
)
def test_an_instance_that_was_made_unchecked_is_checked(
    outbox: Outbox, engine: Engine, model: Any, instance: Any
) -> None:
    outbox.event("order.created", model)
    with Session(engine) as session, session.begin(), pytest.raises(InvalidEvent):
        outbox.publish(session, "order.created", instance)


def test_the_json_of_a_dataclass_of_pydantic_need_not_fit_it(outbox: Outbox, rows: Rows, engine: Engine) -> None:
    @pydantic_dataclass
    class Due:
        on: Annotated[date, PlainSerializer(lambda on: f"{on:%d.%m.}")]

    outbox.event("due", Due)
    with Session(engine) as session, session.begin():
        outbox.publish(session, "due", Due(DUE))
    assert [json.loads(row.payload) for row in rows.hot()] == [{"on": "02.01."}]


def test_no_kind_of_error_shows_the_value(outbox: Outbox, engine: Engine) -> None:
    class OfPydanticChoice(BaseModel):
        state: Literal["new", "paid"]

    class OfMsgspecChoice(msgspec.Struct):
        state: Literal["new", "paid"]

    outbox.event("a", OfPydanticChoice)
    outbox.event("b", OfMsgspecChoice)
    with Session(engine) as session, session.begin():
        for event_type in ("a", "b"):
            with pytest.raises(InvalidEvent, match="state") as refused:
                outbox.publish(session, event_type, {"state": "new - at `s3cret"})
            assert "s3cret" not in str(refused.value)


def test_what_can_not_be_declared_is_refused_at_once(outbox: Outbox) -> None:
    class NotJson(BaseModel, arbitrary_types_allowed=True):
        engine: Engine

    for model in (NotJson, Engine, STORED, "OfPydantic"):
        with pytest.raises(InvalidArgument, match="model = "):
            outbox.event("order.created", model)  # type: ignore[arg-type]
    outbox.event("order.created", OfPydantic)
    with pytest.raises(InvalidArgument, match="is declared already"):
        outbox.event("order.created", OfPython)
