"""What every publisher makes of its messages: the CloudEvents 1.0 attributes, and each message judged by itself."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from outbox_tasks.errors import PermanentError
from outbox_tasks.model import EVENT_ID, LeasedMessage, Outcome

T = TypeVar("T")

TRACE = ("traceparent", "tracestate")
"""Headers that travel as attributes of the trace context extension."""

AS_ATTRIBUTES = (EVENT_ID, *TRACE)
"""All headers that travel as attributes."""

MALFORMED = (PermanentError, OverflowError, RecursionError, ValueError, struct.error)
"""Raised for a message that can't be expressed on the wire, each time again: it is dead."""
UNEXPRESSED = (*MALFORMED, ArithmeticError, AttributeError, LookupError, TypeError)
"""The others are raised for messages that nobody has thought of: they are tried again. An exception that is not in this
list, such as a time limit, is not about the message."""


def encoded(
    messages: Sequence[LeasedMessage], encode: Callable[[LeasedMessage], T | Outcome]
) -> tuple[dict[int, T], dict[int, Outcome]]:
    """What `encode` makes of each message, and the outcomes of the messages that it can't encode, both by place. A bad
    message does not stop the others."""
    encodings: dict[int, T] = {}
    outcomes: dict[int, Outcome] = {}
    for place, message in enumerate(messages):
        try:
            result = encode(message)
        except UNEXPRESSED as error:
            result = unexpressed(error)
        if isinstance(result, Outcome):
            outcomes[place] = result
        else:
            encodings[place] = result
    return encodings, outcomes


def unexpressed(error: Exception) -> Outcome:
    """The outcome of a message for which one of `UNEXPRESSED` was raised."""
    if isinstance(error, PermanentError):
        return Outcome.dead(error.code, str(error))
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MALFORMED):
        # Among a message's texts, only its headers can hold characters that are not Unicode.
        return Outcome.dead("bad_headers" if isinstance(error, UnicodeError) else "bad_message", text)
    return Outcome.retry(type(error).__name__, text)


def attributes(message: LeasedMessage, source: str) -> dict[str, str]:
    """The attributes by their CloudEvents names, without prefix and without `specversion`, which a binding adds
    where it has a place for it. https://github.com/cloudevents/spec, version 1.0.2"""
    result = {
        "id": message.id,
        "type": message.event_type,
        "source": source,
        "time": message.created_at.isoformat(),
    }
    if message.aggregate_id is not None:
        result["subject"] = message.aggregate_id
    if message.key is not None:
        result["partitionkey"] = message.key
    if message.dataref is not None:
        result["dataref"] = message.dataref
    if message.headers != {}:
        headers = checked_headers(message)
        result.update({name: headers[name] for name in AS_ATTRIBUTES if name in headers})
    return result


def trace_headers(message: LeasedMessage) -> dict[str, str]:
    """The trace context under its own names, where tracers look for these. Raises `PermanentError`."""
    return {name: value for name, value in checked_headers(message).items() if name in TRACE}


def own_headers(message: LeasedMessage) -> dict[str, str]:
    """The message's own headers: all but those that travel as attributes. Raises `PermanentError`."""
    if message.headers == {}:
        return {}
    return {name: value for name, value in checked_headers(message).items() if name not in AS_ATTRIBUTES}


def checked_headers(message: LeasedMessage) -> Mapping[str, str]:
    """The headers, if they are text by name. Raises `PermanentError`: rows can be written by anybody."""
    headers: object = message.headers
    if not isinstance(headers, Mapping) or not all(isinstance(value, str) for value in headers.values()):
        raise PermanentError("the headers are not a JSON object of texts", code="bad_headers")
    return headers
