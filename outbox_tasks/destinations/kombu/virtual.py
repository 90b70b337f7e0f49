"""Redis and Azure Storage Queues: what kombu makes of messages, for any consumer that uses kombu."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kombu import Exchange, Producer

from outbox_tasks.broker.broker import batch
from outbox_tasks.broker.login import connection
from outbox_tasks.destinations.kombu.common import Entry, database, outcome_of, parts_of, tls_of
from outbox_tasks.destinations.kombu.internals import azure_transport
from outbox_tasks.model import Outcome, Result
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination

NO_QUEUE = (
    "it must name a queue, as redis://localhost:6379/1/orders does. A stream is "
    "redis+stream://localhost:6379/1/orders. Celery tasks go by celery://?broker=redis://localhost:6379/1"
)


class VirtualSender:
    """kombu's virtual transports: its own message format, in a list, a channel or a queue of some server."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        url, options = parts_of(destination)
        self._fanout: Exchange | None = None
        half = settings.send_timeout / 2
        ssl: dict[str, Any] = {}
        # kombu would wait and try again. Instead, what fails goes back to the table.
        ours: dict[str, Any] = {"max_retries": 0}
        if destination.scheme == "azurestoragequeues":
            if destination.password is not None:
                raise destination.unusable("an Azure Storage Queue has its login in its URL: remove password")
            transport: Any = azure_transport(half)
            transport.parse_uri(url)  # raises `ValueError`
            self._queue = options.get("queue") or destination.name
        else:
            transport = destination.scheme
            url, path = database(destination, url)
            self._queue = path
            if "fanout" in options:
                if path:
                    raise destination.unusable("it has either a queue or fanout=<channel>")
                self._fanout = Exchange(options["fanout"], "fanout")
            elif not path:  # a list that nobody reads would grow without a sign
                raise destination.unusable(NO_QUEUE)
            if destination.scheme == "rediss":
                ssl = {f"ssl_{name}": value for name, value in tls_of(options).items()}
                ssl["ssl_check_hostname"] = bool(ssl["ssl_cert_reqs"])
            ours |= {
                "socket_timeout": half,
                "socket_connect_timeout": min(5.0, half),
                "socket_keepalive": True,
                "health_check_interval": 5,
            }
        # The relay decides about retries, and notes them on the row.
        options_of_kombu = {**ours, **destination.transport_options, "retry_on_timeout": False}
        limits = {"transport_options": options_of_kombu, "connect_timeout": half}
        self._connect = partial(connection, url, destination.password, transport=transport, ssl=ssl, **limits)
        self._connect()  # reads the URL; opens nothing
        self._connection: Any = None
        self._producer: Producer | None = None

    def send(self, entries: Sequence[Entry], deadline: float) -> list[Outcome]:
        """One pipeline for all where there is one (Redis, since kombu 5.7), else one after the other."""
        outcomes: dict[int, Outcome] = {}
        rest = Outcome.sent()
        try:
            producer = self._opened()
            producer.channel.deadline = deadline
            together = getattr(producer, "supports_batch_publish", False)
            with batch(producer, max(1, len(entries))):
                for number, entry in enumerate(entries):
                    if time.monotonic() > deadline:
                        raise TimeoutError("there was no time left to send it")
                    outcome = self._sent(producer, entry)
                    if not together or outcome.result is not Result.SENT:
                        outcomes[number] = outcome
        except BaseException as error:
            self.close()
            rest = outcome_of(error)
        return [outcomes.get(number, rest) for number in range(len(entries))]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = self._producer = None

    def _opened(self) -> Producer:
        if self._producer is None:
            self._connection = self._connect()
            self._producer = Producer(self._connection.default_channel, auto_declare=False)
        return self._producer

    def _sent(self, producer: Producer, entry: Entry) -> Outcome:
        """Send one. Raises what the next ones would meet too: an outage, a time limit."""
        try:
            self._publish(producer, entry)
        except Exception as error:
            outcome = outcome_of(error)
            if outcome.result is Result.OUTAGE:
                raise
            return outcome
        return Outcome.sent()

    def _publish(self, producer: Producer, entry: Entry) -> None:
        producer.publish(
            entry.body,
            exchange=self._fanout or "",
            routing_key="" if self._fanout else self._queue,
            declare=[self._fanout] if self._fanout else [],
            content_type=entry.content_type,
            content_encoding=entry.content_encoding,
            headers=entry.headers,
            message_id=entry.id,
            timestamp=entry.timestamp,
        )
