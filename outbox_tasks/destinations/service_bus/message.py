"""A message as Azure Service Bus carries it, with the CloudEvents binding for AMQP, binary mode."""

from __future__ import annotations

import hashlib
from typing import Any

from azure.servicebus import ServiceBusMessage

from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage
from outbox_tasks.wire.cloudevents import attributes, own_headers

PREFIX = "cloudEvents_"
"""The binding also allows a colon at its end. But only this form works unquoted in JMS and in filters of
subscriptions."""


def outgoing(message: LeasedMessage, source: str, *, sessions: bool) -> ServiceBusMessage:
    """The message as it is sent. Raises `PermanentError`."""
    try:
        own = own_headers(message)
        # Readers take both prefixes: a header of the message's own must not pass for ours.
        texts = {name: value for name, value in own.items() if not name.lower().startswith("cloudevents")}
        texts |= {f"{PREFIX}{name}": value for name, value in attributes(message, source).items()}
        "".join((*texts, *texts.values(), message.content_type, message.event_type)).encode()
    except UnicodeEncodeError as error:  # found here, it fails this message; found at the send, it would fail the batch
        raise PermanentError(f"a text of the message is not Unicode: {error}", code="not_unicode") from error
    group = message.id if message.key is None else message.key
    if not 0 < len(group) <= 128:  # characters of a session's or a partition's name
        group = hashlib.sha256(group.encode()).hexdigest()
    texts[f"{PREFIX}specversion"] = "1.0"
    properties: Any = texts  # the client declares a narrower type
    return ServiceBusMessage(
        message.payload,
        application_properties=properties,
        content_type=message.content_type,
        subject=message.event_type,
        message_id=message.id,
        session_id=group if sessions else None,
        partition_key=group if not sessions and message.key is not None else None,
    )
