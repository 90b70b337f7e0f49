"""Checks a message and makes its rows. Everything that can be refused is refused here, before anything is written."""

from __future__ import annotations

import dataclasses
import json
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NoReturn, get_args
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from outbox_tasks.errors import InvalidMessage, PayloadNotSerializable, PayloadTooLarge
from outbox_tasks.model import (
    EVENT_ID,
    FIRST_TIME,
    LAST_TIME,
    MAX_EVENT_TYPE_CHARACTERS,
    MAX_HEADER_BYTES,
    MAX_KEY_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    TASK_HEADER,
    Message,
    Priority,
    TaskHeaders,
    sibling,
    size_of_headers,
    uuid7,
)
from outbox_tasks.settings import Settings
from outbox_tasks.text import is_encodable, is_text, short

JSON, TEXT, BYTES = "application/json", "text/plain; charset=utf-8", "application/octet-stream"


NO_HEADERS: Mapping[str, str] = MappingProxyType({})

LONGEST_DELAY = timedelta(days=3653)

PRIORITIES = get_args(Priority)

PLAIN = (str, int, float, type(None))
"""Most values of a JSON object are of these types, and have nothing inside."""

Row = dict[str, Any]
"""A row as JSON values, by the columns that `outbox_write` reads; a column that is absent is null."""

_encode = json.JSONEncoder(
    default=to_jsonable_python, allow_nan=False, ensure_ascii=False, separators=(",", ":")
).encode


def rows(message: Message, settings: Settings, trace: Mapping[str, str] = NO_HEADERS) -> tuple[UUID, list[Row]]:
    """The id of a message and its rows, one for each destination. Raises a `MessageRefused`.

    `trace`: the headers of the writer's trace, for messages that have none of their own.
    """
    _check(message)
    names = _destinations(message, settings)
    body, content_type = _serialized(message)
    size = len(body) if isinstance(body, bytes) or body.isascii() else len(body.encode())
    common: Row = {"event_type": message.event_type, "content_type": content_type}
    common.update(_due(message))
    if isinstance(body, bytes) or "\0" in body:  # PostgreSQL's JSON has no NUL
        common["data"] = b64encode(body if isinstance(body, bytes) else body.encode()).decode()
    else:
        common["text"] = body
    for field in ("key", "aggregate_type", "aggregate_id"):
        if (value := getattr(message, field)) is not None:
            common[field] = value
    headers = dict(message.headers or NO_HEADERS)
    if trace:
        headers = {**_missing(message, trace), **headers}
    first = message.id or uuid7()
    if len(names) > 1:
        headers[EVENT_ID] = str(first)
    if headers:
        _check_size(message, headers)
        common["headers"] = headers
    if message.key is not None and (route := settings.route(message.event_type)) is not None and route.latest:
        common["latest"] = True
    if message.priority != "normal":
        common["priority"] = message.priority
    made = []
    for position, name in enumerate(names):
        limit = settings.destination(name, message.event_type).largest
        if size > limit:
            raise PayloadTooLarge(event_type=message.event_type, size=size, destination=name, limit=limit)
        id = first if position == 0 else sibling(first, name)
        made.append({"id": str(id), "destination": name, **common})
    return first, made


def _missing(message: Message, trace: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of the trace, unless the message has its own: a consumer could follow either of two."""
    if message.headers and any(name.lower() == "traceparent" for name in message.headers):
        return NO_HEADERS
    return trace


def _destinations(message: Message, settings: Settings) -> list[str]:
    to: Any = settings.routed(message.event_type) if message.to is None else message.to
    names = list(to) if isinstance(to, Iterable) and not isinstance(to, str) else [to]
    if not names:
        _refuse(message, "to", names, "names no destination")
    if len(set(names)) < len(names):
        _refuse(message, "to", names, "names a destination twice")
    return names


def _serialized(message: Message) -> tuple[str | bytes, str]:
    """The body and its content type. Bytes and str stay as they are; the rest is JSON."""
    payload = message.payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), message.content_type or BYTES
    if isinstance(payload, str):
        if not is_encodable(payload):
            raise PayloadNotSerializable(event_type=message.event_type, reason="half of a surrogate pair is no text")
        return payload, message.content_type or TEXT
    try:
        _check_whole(payload)
        text = _encode(payload)
        if not is_encodable(text):
            raise ValueError("half of a surrogate pair is no text")
    except Exception as error:  # to read an attribute may run code of the application, even a query
        too_deep = isinstance(error, RecursionError)
        reason = "it contains itself, or is nested too deeply" if too_deep else error
        raise PayloadNotSerializable(event_type=message.event_type, reason=reason) from error
    return text, message.content_type or JSON


def _check_whole(value: object, *, in_model: bool = False) -> None:
    """Refuse a value that would be encoded as less than it is, without an error. Fields that SQLAlchemy has not loaded,
    as after a commit, are loaded. `in_model`: the value is inside a model, where pydantic encodes the keys."""
    items: Iterable[object]
    if isinstance(value, dict):
        for key in value if not in_model else ():
            if not isinstance(key, str):  # Python's encoder makes texts of 1, True and None; two keys could become one
                raise TypeError(f"keys must be text, not {type(key).__name__} as in {key!r}")
        items = value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        items = value
    elif isinstance(value, Iterator):
        raise TypeError(f"a {type(value).__name__} can be read only once, and may be read in part: make it a list")
    else:
        items, in_model = (_read(value, name) for name in _fields(value)), True
    for item in items:
        if not isinstance(item, PLAIN):
            _check_whole(item, in_model=in_model)


def _fields(value: object) -> Iterable[str]:
    """The names of the fields of a dataclass or model; of anything else none."""
    if isinstance(value, BaseModel):
        declared = type(value).model_fields.items()
        return [*(name for name, field in declared if not field.exclude), *(value.model_extra or ())]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value)]
    return ()


def _read(value: object, name: str) -> object:
    """A field as the application reads it. The encoder reads only what a model has in memory. It would leave out what
    SQLAlchemy has expired, or what `model_construct` did not get."""
    try:
        return getattr(value, name)
    except Exception as error:
        raise ValueError(f"{type(value).__name__}.{name} can't be read: {error}") from error


def _due(message: Message) -> Row:
    """When the message is due; empty: at once. The database counts a delay, by its own clock."""
    at: object = message.deliver_at
    delay = message.delay
    if at is not None:
        if delay is not None:
            _refuse(message, "delay", delay, "can't be combined with deliver_at")
        if not isinstance(at, datetime) or at.tzinfo is None or at.utcoffset() is None:
            _refuse(message, "deliver_at", at, "has no time zone: pass a datetime with one, such as datetime.now(UTC)")
        if not FIRST_TIME <= at < LAST_TIME:
            _refuse(message, "deliver_at", at, "must be a time in the years 1 to 9999")
        return {"deliver_at": at.isoformat()}
    if delay is None:
        return {}
    try:
        delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except (TypeError, ValueError, OverflowError):
        _refuse(message, "delay", delay, "must be a number of seconds or a timedelta")
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        _refuse(message, "delay", message.delay, "lies in the past, or more than ten years ahead")
    return {"delay": delay.total_seconds()}


def _check(message: Message) -> None:
    """Refuse what the database or all publishers would refuse later."""
    _check_text(message, "event_type", message.event_type, MAX_EVENT_TYPE_CHARACTERS, at_least=1)
    if message.key is not None:
        _check_text(message, "key", message.key, MAX_KEY_CHARACTERS, at_least=1)
    for field in ("aggregate_type", "aggregate_id", "content_type"):
        if (value := getattr(message, field)) is not None:
            _check_text(message, field, value, MAX_TEXT_CHARACTERS)
    if message.priority not in PRIORITIES:
        _refuse(message, "priority", message.priority, "must be high, normal or low")
    if message.id is not None and not isinstance(message.id, UUID):
        _refuse(message, "id", message.id, "must be a UUID")
    if not message.headers:
        return
    headers: object = message.headers
    if not isinstance(headers, Mapping):
        _refuse(message, "headers", headers, "must be a mapping of text to text")
    else:
        for name, value in headers.items():
            if not is_text(name) or not is_text(value):
                _refuse(message, f"headers[{name!r}]", value, "must be text under a name that is text")
        if TASK_HEADER in headers and not isinstance(headers, TaskHeaders):
            rule = "is not for the application: outbox.delay, apply_async and capture set it"
            _refuse(message, f"headers[{TASK_HEADER!r}]", headers[TASK_HEADER], rule)


def _check_size(message: Message, headers: Mapping[str, str]) -> None:
    if (size := size_of_headers(headers)) > MAX_HEADER_BYTES:
        _refuse(message, "headers", headers, f"have {size:,} bytes as JSON, and may have {MAX_HEADER_BYTES:,}")


def _check_text(message: Message, field: str, value: object, at_most: int, *, at_least: int = 0) -> None:
    if not is_text(value) or not at_least <= len(str(value)) <= at_most:
        _refuse(message, field, value, f"must be text of {at_least} to {at_most} characters, without NUL")


def _refuse(message: Message, field: str, value: object, rule: str) -> NoReturn:
    raise InvalidMessage(event_type=short(message.event_type), field=field, value=short(value), rule=rule)
