"""A message as Amazon's services carry it: a text and some attributes."""

from __future__ import annotations

import base64
import json
import re

from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage
from outbox_tasks.wire.cloudevents import AS_ATTRIBUTES, attributes, own_headers

REFUSED_CHARACTER = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that SQS refuses."""


def body_of(payload: bytes) -> tuple[str, str | None]:
    """A text that the services carry unchanged, and its encoding if it is not the payload itself."""
    if not payload:
        return "-", "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or REFUSED_CHARACTER.search(text):
        return base64.b64encode(payload).decode(), "base64"
    return text, None


def attributes_of(message: LeasedMessage, source: str, encoding: str | None) -> dict[str, str]:
    """At most ten, and none of them empty: SQS takes no more, and SNS drops a message with more on its way to a queue.
    Raises `PermanentError`."""
    values = {f"ce_{name}": value for name, value in attributes(message, source).items()}
    values["content_type"] = message.content_type
    own = own_headers(message)
    if encoding is not None:
        values["body_encoding"] = encoding
    for name in reversed(AS_ATTRIBUTES):  # the headers that they came from
        if len(values) + bool(own) > 10 and f"ce_{name}" in values:
            own[name] = values.pop(f"ce_{name}")
    if own:
        values["headers"] = json.dumps(own)
    for name, value in values.items():
        if refused := REFUSED_CHARACTER.search(value):
            raise PermanentError(f"{name} has a character that AWS refuses: {refused[0]!a}", code="bad_attributes")
    return {name: value for name, value in values.items() if value}
