"""A message as Pub/Sub carries it: bytes, and attributes in binary mode of the CloudEvents binding for Pub/Sub.

https://github.com/googleapis/google-cloudevents/blob/main/docs/spec/pubsub.md
"""

from __future__ import annotations

from typing import NamedTuple

from google.pubsub_v1.types import PublishRequest

from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage
from outbox_tasks.wire.cloudevents import attributes, own_headers

REQUEST = PublishRequest.pb()
"""Google's plain protobuf message. Its wrapper class would take longer than everything else here."""


class Entry(NamedTuple):
    """A message on its way: which of the list it is, its ordering key, and its part of a request."""

    place: int
    key: str
    body: bytes


def entry_of(message: LeasedMessage, source: str, *, ordered: bool) -> Entry:
    """The message, ready to be sent. Raises `PermanentError`."""
    key = message.key or "" if ordered else ""
    request = REQUEST()
    try:
        values = _attributes(message, source)
        request.messages.add(data=message.payload, attributes=values, ordering_key=key)
    except ValueError as error:
        raise PermanentError(f"a text of the message is not Unicode: {error}", code="not_unicode") from error
    # A serialised request is its serialised parts, one after the other.
    return Entry(0, key, bytes(request.SerializeToString()))


def _attributes(message: LeasedMessage, source: str) -> dict[str, str]:
    values = {f"ce-{name}": value for name, value in attributes(message, source).items()}
    values["ce-specversion"] = "1.0"
    # The binding's text uses one name; its examples and the SDKs use the other.
    values["content-type"] = values["ce-datacontenttype"] = message.content_type
    values |= {_free(name): value for name, value in own_headers(message).items()}
    return values


def _free(name: str) -> str:
    """A header's name. It gets the prefix `h_` if Google or a reader would act upon it."""
    taken = name.lower().startswith(("ce-", "goog")) or name.lower() == "content-type"
    return f"h_{name}" if taken else name
