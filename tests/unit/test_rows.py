"""What `rows` makes of a message: one row for each destination, with all that travels along, up to each limit."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from outbox_tasks.errors import InvalidMessage, PayloadNotSerializable, PayloadTooLarge
from outbox_tasks.model import FIRST_TIME, LAST_TIME, MAX_HEADER_BYTES, Message, sibling, uuid7
from outbox_tasks.settings import Settings
from outbox_tasks.writing.rows import LONGEST_DELAY, rows

SETTINGS = Settings(
    destinations={"orders": {"url": "a://b", "max_bytes": 10}, "audit": {"url": "a://b"}},
    routes={"order.*": {"to": ["orders"], "latest": True}, "*": ["orders", "audit"]},
)
TRACE = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "a=b"}
ID = UUID("01234567-89ab-7def-8123-456789abcdef")


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    counts: dict[int, int]


class Order(BaseModel):
    id: UUID
    placed: datetime
    price: Decimal
    colour: Colour


def row(event_type: str = "order.created", payload: Any = "x", **fields: Any) -> dict[str, Any]:
    """The only row of a message."""
    [made] = rows(Message(event_type, payload, **fields), SETTINGS)[1]
    return made


def test_latest_is_for_messages_with_a_key() -> None:
    assert row(key="a")["latest"] is True
    assert "latest" not in row()
    assert all("latest" not in made for made in rows(Message("a", "x", key="a"), SETTINGS)[1])


def test_the_messages_of_an_event_have_ids_of_their_own_and_the_event_s() -> None:
    for chosen in (ID, None):
        id, (first, second) = rows(Message("a", "x", id=chosen, headers={"tenant": "1"}), SETTINGS)
        assert chosen in (None, id)
        assert (first["id"], second["id"]) == (str(id), str(sibling(id, "audit")))
        assert first["headers"] == second["headers"] == {"tenant": "1", "eventid": str(id)}


@pytest.mark.parametrize("name", ["traceparent", "TraceParent"])
def test_a_trace_that_the_message_states_wins_whole(name: str) -> None:
    [made] = rows(Message("order.created", "x", headers={name: "its own"}), SETTINGS, TRACE)[1]
    assert made["headers"] == {name: "its own"}


def test_the_writers_trace_joins_the_headers_and_replaces_none() -> None:
    [made] = rows(Message("order.created", "x", headers={"tracestate": "own=1", "tenant": "1"}), SETTINGS, TRACE)[1]
    assert made["headers"] == {**TRACE, "tracestate": "own=1", "tenant": "1"}


def test_a_priority_and_a_time_are_on_the_row_if_they_are_not_the_usual_ones() -> None:
    assert not {"priority", "deliver_at", "delay", "headers", "key"} & row().keys()
    assert row(priority="low")["priority"] == "low"
    assert row(deliver_at=datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))["deliver_at"].endswith("+02:00")
    assert row(delay=timedelta(minutes=1))["delay"] == row(delay=60)["delay"] == 60.0


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ({"payload": "x" * 10}, {"payload": "x" * 11}),
        ({"payload": "é" * 5}, {"payload": "é" * 6}),
        ({"payload": b"\xff" * 10}, {"payload": b"\xff" * 11}),
        ({"headers": {"a": "x" * (MAX_HEADER_BYTES - 9)}}, {"headers": {"a": "x" * (MAX_HEADER_BYTES - 8)}}),
        ({"key": "x" * 255}, {"key": "x" * 256}),
        ({"delay": LONGEST_DELAY}, {"delay": LONGEST_DELAY + timedelta(microseconds=1)}),
        ({"delay": 0}, {"delay": -0.001}),
        ({"deliver_at": FIRST_TIME}, {"deliver_at": FIRST_TIME - timedelta(microseconds=1)}),
        ({"deliver_at": LAST_TIME - timedelta(microseconds=1)}, {"deliver_at": LAST_TIME}),
    ],
)
def test_each_limit_is_within(within: dict[str, Any], beyond: dict[str, Any]) -> None:
    row(**within)
    with pytest.raises((InvalidMessage, PayloadTooLarge)):
        row(**beyond)


def test_a_zone_that_knows_no_offset_is_no_zone() -> None:
    class Nowhere(tzinfo):
        def utcoffset(self, at: datetime | None) -> None:
            return None

    with pytest.raises(InvalidMessage, match="time zone"):
        row(deliver_at=datetime(2030, 1, 1, tzinfo=Nowhere()))
    assert row(deliver_at=datetime(2030, 1, 1, tzinfo=UTC))["deliver_at"] == "2030-01-01T00:00:00+00:00"


RICH = {"id": UUID(int=1), "placed": datetime(2030, 1, 1, tzinfo=UTC), "price": Decimal("9.90"), "colour": Colour.RED}
PLAIN = {
    "id": "00000000-0000-0000-0000-000000000001", "placed": "2030-01-01T00:00:00Z", "price": "9.90", "colour": "red",
}  # fmt: skip


@pytest.mark.parametrize("payload", [RICH, Order(**RICH)], ids=["dict", "model"])
def test_rich_values_become_json(payload: Any) -> None:
    made = row(payload=payload, to="audit")
    found = json.loads(made["text"])
    assert {**found, "placed": found["placed"].replace("+00:00", "Z")} == PLAIN
    assert made["content_type"] == "application/json"


@pytest.mark.parametrize(
    "payload",
    [{1: "a"}, {None: 1}, {"a": [{"b": {2.5: 1}}]}, [({"a": {1: 1}},)]],
    ids=repr,
)
def test_keys_that_are_no_text_are_refused(payload: Any) -> None:
    """JSON's encoder would make texts of them, and one of two."""
    with pytest.raises(PayloadNotSerializable, match="keys must be text"):
        row(payload=payload, to="audit")


def test_a_model_may_declare_such_keys() -> None:
    assert json.loads(row(payload=Line("apple", {1: 2}), to="audit")["text"]) == {"sku": "apple", "counts": {"1": 2}}


@pytest.mark.parametrize(
    ("payload", "column", "content_type"),
    [
        ("plain", "text", "text/plain; charset=utf-8"),
        (b"octets", "data", "application/octet-stream"),
        (bytearray(b"octets"), "data", "application/octet-stream"),
        (memoryview(b"octets"), "data", "application/octet-stream"),
        ("", "text", "text/plain; charset=utf-8"),
        ("NUL \0", "data", "text/plain; charset=utf-8"),
    ],
    ids=["a text", "bytes", "a bytearray", "a memoryview", "an empty text", "a text that PostgreSQL can't store"],
)
def test_text_and_bytes_stay_what_they_are(payload: Any, column: str, content_type: str) -> None:
    made = row(payload=payload, to="audit")
    kept = made[column] if column == "text" else b64decode(made[column])
    assert kept in (payload, payload.encode() if isinstance(payload, str) else bytes(payload))
    assert made["content_type"] == content_type


def test_a_destination_is_named_once() -> None:
    with pytest.raises(InvalidMessage, match="names a destination twice"):
        rows(Message("a", 1, to=["orders", "orders"]), SETTINGS)


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=2, max_size=20, unique=True))
def test_ids_sort_by_the_millisecond_they_were_made_in(moments: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ids = []
        for moment in moments:
            patch.setattr(time, "time_ns", lambda moment=moment: moment * 1_000_000 + 999_999)
            ids.append(uuid7())
    assert {made.version for made in ids} == {7}
    assert [made.int >> 80 for made in ids] == moments
    assert sorted(ids) == [made for _, made in sorted(zip(moments, ids, strict=True))]
