"""Makes messages of a feed's rows. Anybody may have written a row, so it is checked as any writer's message is. A row
that can't be a message becomes a dead letter of `feed.<name>`, which is no destination."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from outbox_tasks.errors import MessageRefused, NoRoute
from outbox_tasks.feeds.source import MESSAGE_BYTES, Row
from outbox_tasks.feeds.store import Copy
from outbox_tasks.model import MAX_PAYLOAD_BYTES, Message, TaskHeaders
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import storable
from outbox_tasks.writing import rows

DESTINATION_CHARACTERS = 255
TEXT_CHARACTERS_AT_MOST = 1024 * 1024
"""A longer text is copied as base64: in JSON each of its characters could take twelve bytes."""
UNREADABLE = "outbox.unreadable"
"""The event type of a row that names none."""


def copied(row: Row, feed: str, settings: Settings) -> Copy:
    """The messages of a row. `settings`: with the feed's routes."""
    if row.size > MESSAGE_BYTES:
        why = f"it has {row.size:,} bytes, over the {MESSAGE_BYTES:,} that can be copied; this is its beginning"
        return unreadable(row, feed, why)
    try:
        message, latest = _read(row)
        try:
            return Copy(row.number, row.id, _written(message, latest, settings))
        except NoRoute as error:
            # A dead letter too, but with all that `replay` needs to send it, once there is a route.
            nowhere = {_nowhere(feed): Destination(url="feed://")}
            elsewhere = settings.model_copy(update={"routes": {}, "destinations": nowhere})
            at_once = replace(message, to=None, deliver_at=None, delay=None)
            return Copy(row.number, row.id, _written(at_once, latest, elsewhere), str(error), "no_route")
    except (MessageRefused, ValueError, TypeError, RecursionError) as error:
        return unreadable(row, feed, str(error))


def unreadable(row: Row, feed: str, why: str) -> Copy:
    """A dead letter with the row's own text, cut to what a message can have."""
    body = b64encode(row.message.encode(errors="replace")[:MAX_PAYLOAD_BYTES]).decode()
    message = {"id": str(_id(row, feed)), "event_type": UNREADABLE, "destination": _nowhere(feed),
               "data": body, "content_type": "text/plain; charset=utf-8"}  # fmt: skip
    reason = storable(f"row {row.number} of feed {feed} is no message: {why}")
    return Copy(row.number, str(storable(row.id)), [message], reason)


def _nowhere(feed: str) -> str:
    return f"feed.{feed}"[:DESTINATION_CHARACTERS]


def _id(row: Row, feed: str) -> UUID:
    """The row's id, or one that follows from it."""
    try:
        return UUID(row.id)
    except ValueError:
        return uuid5(NAMESPACE_OID, f"{feed} {row.number} {row.id}")


def _read(row: Row) -> tuple[Message, bool | None]:
    """The message of a row, and its own `latest`. Raises `ValueError` or `TypeError`."""
    source = json.loads(row.message)
    if not isinstance(source, dict):
        raise TypeError("it is not a JSON object")
    text, data, at, latest = (source.get(name) for name in ("text", "data", "deliver_at", "latest"))
    if not isinstance(text, str) and not isinstance(data, str):
        raise TypeError("it has neither text nor data")
    if not isinstance(latest, bool | None):
        raise TypeError("its latest is not true or false")
    message = Message(
        source.get("event_type", ""),
        text if isinstance(text, str) else b64decode(str(data), validate=True),
        key=row.key,
        to=source.get("destination"),
        headers=TaskHeaders(source.get("headers") or {}),
        deliver_at=None if at is None else datetime.fromisoformat(at),
        delay=source.get("delay"),
        id=UUID(row.id),
        aggregate_type=source.get("aggregate_type"),
        aggregate_id=source.get("aggregate_id"),
        content_type=source.get("content_type") or rows.JSON,
        priority=source.get("priority") or "normal",
    )
    return message, latest


def _written(message: Message, latest: bool | None, settings: Settings) -> list[dict[str, Any]]:
    _, written = rows.rows(message, settings)
    for each in written:
        if latest is not None:
            each["latest"] = latest
        if len(each.get("text", "")) > TEXT_CHARACTERS_AT_MOST:
            each["data"] = b64encode(each.pop("text").encode()).decode()
    return written
