"""Which changes of an event break somebody: consumers of today, or messages that are stored today."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from outbox_tasks.events.diff import changes
from outbox_tasks.events.documents import asyncapi
from outbox_tasks.events.event import event
from outbox_tasks.settings import Settings

SETTINGS = Settings(destinations={"stream": "redis+stream://localhost:6379/1/events"}, routes={"*": ["stream"]})


class Low(StrEnum):
    NEW = "new"
    PAID = "paid"


class High(StrEnum):
    NEW = "new"
    PAID = "paid"
    SENT = "sent"


class MayHaveValue(TypedDict):
    value: NotRequired[int]


class HasValue(TypedDict):
    value: int


class Node(BaseModel):
    value: int
    children: list[Node]


def told_apart(value: Any) -> Any:
    """One of two models, which say by their `kind` which they are."""
    one, two = (create_model(name, kind=(Literal[name], ...), value=(kind, ...)) for name, kind in
                (("one", int), ("two", value)))  # fmt: skip
    return Annotated[one | two, Field(discriminator="kind")]


def of(kind: Any) -> Any:
    """A model with one field of a type."""
    return create_model("Order", value=(kind, ...))


def documents(old: Any, new: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple(asyncapi({"order": event("order", model)}, SETTINGS) for model in (old, new))  # type: ignore[return-value]


def found(old: Any, new: Any) -> set[tuple[str, str, str]]:
    return {(change.place, change.kind, change.grade) for change in changes(*documents(old, new))}


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (int, str, ("value", "type changed", "breaks")),
        (told_apart(int), told_apart(str), ("value.value", "type changed", "breaks")),
        (int | None, int, ("value", "type narrowed", "breaks")),
        (int, int | None, ("value", "type widened", "breaks")),
        (int, float, ("value", "type changed", "breaks")),
        (int | str, str, ("value", "type narrowed", "breaks")),
        (Low, High, ("value", "value added", "risky")),
        (High, Low, ("value", "value removed", "breaks")),
        (str, Low, ("value", "type narrowed", "breaks")),
        (Low, str, ("value", "type widened", "breaks")),
        (Literal["a"], Literal["a", "b"], ("value", "value added", "risky")),
        (int, Annotated[int, Field(le=9)], ("value", "limit tightened", "breaks")),
        (Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)], ("value", "limit loosened", "risky")),
        (
            Annotated[str, Field(max_length=9)],
            Annotated[str, Field(max_length=8)],
            ("value", "limit tightened", "breaks"),
        ),
        (Annotated[int, Field(gt=0)], int, ("value", "limit loosened", "risky")),
        (Annotated[str, Field(pattern="a")], Annotated[str, Field(pattern="b")], ("value", "format changed", "breaks")),
        (list[int], list[str], ("value[]", "type changed", "breaks")),
        (tuple[int, str], tuple[int, int], ("value[1]", "type changed", "breaks")),
        (dict[str, int], dict[str, str], ("value.*", "type changed", "breaks")),
        (of(int), of(str), ("value.value", "type changed", "breaks")),
        (list[of(Low)], list[of(High)], ("value[].value", "value added", "risky")),
    ],
)
def test_of_types_and_values(old: Any, new: Any, change: tuple[str, str, str]) -> None:
    assert found(of(old), of(new)) == {change}
    assert found(of(old), of(old)) == found(of(new), of(new)) == set()


def test_of_fields() -> None:
    one, two = create_model("Order", a=(int, ...)), create_model("Order", a=(int, ...), b=(int, ...))
    with_default = create_model("Order", a=(int, ...), b=(int, 0))
    assert found(two, one) == {("b", "field removed", "breaks")}
    assert found(one, two) == {("b", "required field added", "breaks")}
    assert found(one, with_default) == {("b", "optional field added", "safe")}
    assert found(MayHaveValue, HasValue) == {("value", "became required", "breaks")}
    assert found(HasValue, MayHaveValue) == {("value", "became optional", "breaks")}
    closed = create_model("Order", a=(int, ...), __config__=ConfigDict(extra="forbid"))
    assert found(one, closed) == {("", "closed to other fields", "breaks")}
    assert found(closed, closed) == set()
    assert found(closed, one) == {("", "open to other fields", "risky")}


def test_a_model_that_contains_itself_is_compared_once_at_each_place() -> None:
    class Changed(BaseModel):
        value: str
        children: list[Changed]

    def both(model: Any) -> Any:
        return create_model("Pair", left=(model, ...), right=(model, ...))

    expected = {(f"{side}.value", "type changed", "breaks") for side in ("left", "right")}
    assert expected <= found(both(Node), both(Changed))


def test_of_events_and_of_what_only_people_read() -> None:
    old, new = documents(of(int), of(int))
    message = old["components"]["messages"].pop("order")
    assert [(each.kind, each.grade) for each in changes(new, old)] == [("event removed", "breaks")]
    assert [(each.kind, each.grade) for each in changes(old, new)] == [("event added", "safe")]
    old["components"]["messages"]["sold"] = {**message, "description": "of a shop"}  # the name counts
    assert list(changes(old, new)) == []
