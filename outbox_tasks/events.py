"""The CloudEvents 1.0 attributes of a message, as every binding carries them."""

from __future__ import annotations

from collections.abc import Mapping

from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage

TRACE = ("traceparent", "tracestate")
"""Headers that travel as attributes of the trace context extension."""


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
        result.update({name: headers[name] for name in TRACE if name in headers})
    return result


def trace_headers(message: LeasedMessage) -> dict[str, str]:
    """The trace context under its own names, where tracers look for these. Raises `PermanentError`."""
    return {name: value for name, value in checked_headers(message).items() if name in TRACE}


def own_headers(message: LeasedMessage) -> dict[str, str]:
    """The message's own headers: all but those that travel as attributes. Raises `PermanentError`."""
    return {name: value for name, value in checked_headers(message).items() if name not in TRACE}


def checked_headers(message: LeasedMessage) -> Mapping[str, str]:
    """The headers, if they are text by name. Raises `PermanentError`: rows can be written by anybody."""
    headers: object = message.headers
    if not isinstance(headers, Mapping) or not all(isinstance(value, str) for value in headers.values()):
        raise PermanentError("the headers are not a JSON object of texts", code="bad_headers")
    return headers
