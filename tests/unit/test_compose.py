"""The rows that a message becomes, and what is refused on the way."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from outbox_tasks import Message
from outbox_tasks.errors import InvalidMessage, PayloadNotSerializable
from outbox_tasks.settings import Settings
from outbox_tasks.writing.rows import rows

ORDERS = {"orders": {"url": "a://b"}, "audit": {"url": "a://b"}}


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


def composed(payload: Any, **fields: Any) -> dict[str, Any]:
    settings = Settings(destinations=ORDERS, **fields.pop("settings", {}))
    _, [row] = rows(Message("order.created", payload, to="orders", **fields), settings)
    return row


RICH = {"id": UUID(int=1), "placed": datetime(2030, 1, 1, tzinfo=UTC), "price": Decimal("9.90"), "colour": Colour.RED}
PLAIN = {
    "id": "00000000-0000-0000-0000-000000000001", "placed": "2030-01-01T00:00:00Z", "price": "9.90", "colour": "red",
}  # fmt: skip


@pytest.mark.parametrize("payload", [RICH, Order(**RICH)], ids=["dict", "model"])
def test_rich_values_become_json(payload: Any) -> None:
    row = composed(payload)
    found = json.loads(row["text"])
    assert {**found, "placed": found["placed"].replace("+00:00", "Z")} == PLAIN
    assert row["content_type"] == "application/json"


@pytest.mark.parametrize(
    "payload",
    [{1: "a"}, {None: 1}, {"a": [{"b": {2.5: 1}}]}, [({"a": {1: 1}},)]],
    ids=repr,
)
def test_keys_that_are_no_text_are_refused(payload: Any) -> None:
    """JSON's encoder would make texts of them, and one of two."""
    with pytest.raises(PayloadNotSerializable, match="keys must be text"):
        composed(payload)


def test_a_model_may_declare_such_keys() -> None:
    assert json.loads(composed(Line("apple", {1: 2}))["text"]) == {"sku": "apple", "counts": {"1": 2}}


@pytest.mark.parametrize(
    ("payload", "column", "content_type"),
    [
        ("plain", "text", "text/plain; charset=utf-8"),
        (b"octets", "data", "application/octet-stream"),
        (bytearray(b"octets"), "data", "application/octet-stream"),
        ("NUL \0", "data", "text/plain; charset=utf-8"),
    ],
    ids=repr,
)
def test_text_and_bytes_stay_what_they_are(payload: Any, column: str, content_type: str) -> None:
    row = composed(payload)
    kept = row[column] if column == "text" else b64decode(row[column])
    assert kept in (payload, payload.encode() if isinstance(payload, str) else bytes(payload))
    assert row["content_type"] == content_type


def test_a_destination_is_named_once() -> None:
    with pytest.raises(InvalidMessage, match="names a destination twice"):
        rows(Message("a", 1, to=["orders", "orders"]), Settings(destinations=ORDERS))


def test_a_delay_is_for_the_databases_clock_and_a_time_keeps_its_zone() -> None:
    assert composed(1, delay=1.5)["delay"] == 1.5
    assert composed(1, delay=timedelta(minutes=1))["delay"] == 60
    assert composed(1, deliver_at=datetime(2030, 1, 1, tzinfo=UTC))["deliver_at"] == "2030-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "at",
    [
        datetime(9999, 12, 31, 23, 59, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=12))),  # the year 10000 by UTC
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))),
    ],
    ids=str,
)
def test_a_time_that_not_everybody_can_read_is_refused(at: datetime) -> None:
    with pytest.raises(InvalidMessage, match=r"deliver_at.* must be a time in the years 1 to 9999"):
        composed(1, deliver_at=at)


def test_a_key_has_characters() -> None:
    with pytest.raises(InvalidMessage, match="key = '' must be text of 1 to 255 characters"):
        composed(1, key="")
    assert "key" not in composed(1, key=None)
