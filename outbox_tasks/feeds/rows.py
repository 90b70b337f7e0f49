"""Makes messages of a feed's rows. Anybody may have written a row, so everything is checked. A row that can't be a
message becomes a dead letter of `feed.<name>`, which is no destination."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from datetime import datetime
from typing import Any, get_args
from uuid import NAMESPACE_OID, UUID, uuid5

from outbox_tasks.errors import NoRoute
from outbox_tasks.feeds.source import MESSAGE_BYTES, Row
from outbox_tasks.feeds.store import Copy
from outbox_tasks.model import (
    EVENT_ID,
    MAX_EVENT_TYPE_CHARACTERS,
    MAX_HEADER_BYTES,
    MAX_KEY_CHARACTERS,
    MAX_PAYLOAD_BYTES,
    MAX_TEXT_CHARACTERS,
    Priority,
    sibling,
    size_of_headers,
)
from outbox_tasks.settings import Settings
from outbox_tasks.text import is_encodable, is_text

DESTINATION_CHARACTERS = 255
DELAY_SECONDS_AT_MOST = 3653 * 86_400.0
TEXT_CHARACTERS_AT_MOST = 1024 * 1024
"""A longer text is copied as base64: in JSON each of its characters could take twelve bytes."""
UNREADABLE = "outbox.unreadable"
"""The event type of a row that names none."""

OPTIONAL = ("aggregate_type", "aggregate_id", "content_type", "deliver_at", "delay", "priority", "latest", "headers")


def copied(row: Row, feed: str, settings: Settings) -> Copy:
    """The messages of a row. `settings`: with the feed's routes."""
    if row.size > MESSAGE_BYTES:
        why = f"it has {row.size:,} bytes, over the {MESSAGE_BYTES:,} that can be copied; this is its beginning"
        return unreadable(row, feed, why)
    try:
        id, message = UUID(row.id), _read(row)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        return unreadable(row, feed, str(error))
    try:
        return Copy(row.number, row.id, _routed(id, message, settings))
    except NoRoute as error:
        # A dead letter too, but with all that `replay` needs to send it, once there is a route.
        kept = {name: value for name, value in message.items() if name not in ("deliver_at", "delay")}
        lost = {**kept, "id": str(id), "destination": _nowhere(feed)}
        return Copy(row.number, row.id, [lost], str(error), "no_route")


def unreadable(row: Row, feed: str, why: str) -> Copy:
    """A dead letter with the row's own text, cut to what a message can have."""
    body = b64encode(row.message.encode(errors="replace")[:MAX_PAYLOAD_BYTES]).decode()
    message = {"id": str(_id(row, feed)), "event_type": UNREADABLE, "destination": _nowhere(feed),
               "data": body, "content_type": "text/plain; charset=utf-8"}  # fmt: skip
    return Copy(row.number, _sound(row.id), [message], _sound(f"row {row.number} of feed {feed} is no message: {why}"))


def _nowhere(feed: str) -> str:
    return f"feed.{feed}"[:DESTINATION_CHARACTERS]


def _sound(text: str) -> str:
    """A text as PostgreSQL takes it."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _id(row: Row, feed: str) -> UUID:
    """The row's id, or one that follows from it."""
    try:
        return UUID(row.id)
    except ValueError:
        return uuid5(NAMESPACE_OID, f"{feed} {row.number} {row.id}")


def _read(row: Row) -> dict[str, Any]:
    """The message of a row, checked; perhaps without a destination. Raises `ValueError` or `TypeError`."""
    source = json.loads(row.message)
    _need(isinstance(source, dict), "it is not a JSON object")
    message = {"content_type": "application/json"}
    message |= {name: source[name] for name in OPTIONAL if source.get(name) is not None}
    message["event_type"] = source.get("event_type")
    _need_text("event_type", message["event_type"], MAX_EVENT_TYPE_CHARACTERS, 1)
    if row.key is not None:
        _need_text("ordering_key", row.key, MAX_KEY_CHARACTERS, 1)
        message["key"] = row.key
    _add_payload(message, source)
    _check(message)
    if (destination := source.get("destination")) is not None:
        _need_text("destination", destination, DESTINATION_CHARACTERS, 1)
        message["destination"] = destination
    return message


def _routed(id: UUID, message: dict[str, Any], settings: Settings) -> list[dict[str, Any]]:
    """A message for each destination. Raises `NoRoute`."""
    if "destination" in message:
        return [{**message, "id": str(id)}]
    if "key" in message and (route := settings.route(message["event_type"])) is not None and route.latest:
        message.setdefault("latest", True)
    names = settings.routed(message["event_type"])
    if len(names) > 1:
        message["headers"] = {EVENT_ID: str(id), **message.get("headers", {})}
    ids = [id, *(sibling(id, name) for name in names[1:])]
    return [{**message, "id": str(own_id), "destination": name} for own_id, name in zip(ids, names, strict=True)]


def _add_payload(message: dict[str, Any], source: dict[str, Any]) -> None:
    text, data = source.get("text"), source.get("data")
    if text is not None:
        _need(isinstance(text, str) and is_encodable(text), "its text is no text")
        if len(text) > TEXT_CHARACTERS_AT_MOST or "\0" in text:  # PostgreSQL's JSON has no NUL
            _need_room(body := text.encode())
            message["data"] = b64encode(body).decode()
        else:
            message["text"] = text
        return
    if not isinstance(data, str):
        raise TypeError("it has neither text nor data")
    try:
        body = b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"its data is not base64: {error}") from None
    _need_room(body)
    message["data"] = data


def _need_room(payload: bytes) -> None:
    _need(
        len(payload) <= MAX_PAYLOAD_BYTES,
        f"its payload has {len(payload):,} bytes, over the {MAX_PAYLOAD_BYTES:,} of any message",
    )


def _check(message: dict[str, Any]) -> None:
    for name in ("aggregate_type", "aggregate_id", "content_type"):
        if name in message:
            _need_text(name, message[name], MAX_TEXT_CHARACTERS, 0)
    _need(message.get("priority", "normal") in get_args(Priority), "its priority is not high, normal or low")
    _need(isinstance(message.get("latest", False), bool), "its latest is not true or false")
    delay = message.get("delay", 0)
    _need(type(delay) in (int, float) and 0 <= delay <= DELAY_SECONDS_AT_MOST, "its delay is no number of seconds")
    if "deliver_at" in message:
        at = datetime.fromisoformat(message["deliver_at"])
        _need(at.tzinfo is not None, "its deliver_at has no time zone")
    headers = message.get("headers", {})
    _need(isinstance(headers, dict), "its headers are no JSON object")
    _need(all(is_text(name) and is_text(value) for name, value in headers.items()), "its headers are not all text")
    size = size_of_headers(headers)
    _need(
        size <= MAX_HEADER_BYTES,
        f"its headers have {size:,} bytes as JSON, over the {MAX_HEADER_BYTES:,} that they may have",
    )


def _need_text(name: str, value: object, at_most: int, at_least: int) -> None:
    rule = f"its {name} is not a text of {at_least} to {at_most} characters, without NUL"
    _need(is_text(value) and at_least <= len(str(value)) <= at_most, rule)


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
