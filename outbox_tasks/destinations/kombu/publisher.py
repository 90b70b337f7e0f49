"""Queues and exchanges through kombu: RabbitMQ, lists and pub/sub of Redis, Azure Storage Queues.

Over RabbitMQ the messages are plain AMQP 0-9-1, over the others what kombu makes of them, for any consumer that uses
kombu. Over all of them the CloudEvents attributes are headers `ce-<name>`, as in the binding for RabbitMQ.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from outbox_tasks.destinations.kombu.common import TEXT, Entry, Sender
from outbox_tasks.destinations.kombu.rabbit import RabbitSender
from outbox_tasks.destinations.kombu.virtual import VirtualSender
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers


class KombuPublisher:
    """Sends to a queue or an exchange. Sent means that RabbitMQ has confirmed, or that Redis or Azure has answered."""

    green = True
    asks_password = True
    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._send_timeout = settings.send_timeout
        amqp_scheme = destination.scheme in ("amqp", "amqps")
        kind = RabbitSender if amqp_scheme else VirtualSender
        self._sender = PerProcess[Sender](partial(kind, destination, settings))
        self._sender.get()  # checks the URL

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """All at once where the broker allows it, and one outcome for each."""
        deadline = time.monotonic() + self._send_timeout
        entries, unsendable = encoded(messages, self._entry)
        outcomes = iter(self._sender.get().send(list(entries.values()), deadline) if entries else ())
        return [unsendable.get(place) or next(outcomes) for place in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        self._sender.get().close()

    def _entry(self, message: LeasedMessage) -> Entry:
        events = {f"ce-{name}": value for name, value in attributes(message, self._source).items()}
        # Readers of the binding take the names in any case: a header of the message's own must not pass for ours.
        own = {_free(name): value for name, value in own_headers(message).items() if name.lower() not in events}
        content_type = message.content_type or "application/octet-stream"
        return Entry(
            id=message.id,
            body=message.payload,
            content_type=content_type,
            # kombu's name for how bytes become text; anything else is left to the reader.
            content_encoding="utf-8" if TEXT.fullmatch(content_type) else "binary",
            headers={**own, **events, "ce-specversion": "1.0"},
            timestamp=max(0, int(message.created_at.timestamp())),
            event_type=message.event_type,
        )


def _free(name: str) -> str:
    """A header's name. It gets the prefix `h_` if kombu's consumers would act upon it."""
    return f"h_{name}" if name == "compression" else name
