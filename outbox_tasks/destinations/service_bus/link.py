"""A connection to Azure Service Bus, for `service_bus`."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakSet

import certifi
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusSender,
    TransportType,
)
from azure.servicebus.exceptions import MessageSizeExceededError

from outbox_tasks.destinations.service_bus.internals import largest_message
from outbox_tasks.destinations.service_bus.url import Address

IDLE_SECONDS = 120.0
"""After so long an idle connection is replaced: the service closes such connections, and the client does not notice."""


class Entry(NamedTuple):
    """A message as it is sent, and which of the list it is."""

    nth: int
    message: ServiceBusMessage


class Link:
    """A client with one sender, for one thread at a time."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._used = 0.0
        self.given_up = False
        """Whether nobody waits for it any more: then nothing more is sent, and its thread closes it."""
        self._address, self._timeout = address, timeout
        self._sender: ServiceBusSender | None = None
        self._opened = ExitStack()
        self._sockets: WeakSet[ssl.SSLSocket] = WeakSet()

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):  # it may be half open, and broken in any way
            self._opened.close()
        for opened in list(self._sockets):  # if the other side has closed one, the client leaves it open
            opened.close()
        self._sender = None

    def open(self) -> ServiceBusSender:
        """The sender, connected."""
        if time.monotonic() - self._used > IDLE_SECONDS:
            self.close()
        if self._sender is None:
            with ExitStack() as opening:
                client = opening.enter_context(closing(self._client(opening)))
                # A topic's sender is the same. No keep-alive: its thread would read from the connection too.
                answer_seconds = min(1.0, self._timeout / 4)
                sender = client.get_queue_sender(self._address.entity, socket_timeout=answer_seconds, keep_alive=0)
                sender.create_message_batch()  # connects, to ask how large one may be
                self._sender, self._opened = sender, opening.pop_all()
            self._used = time.monotonic()
        return self._sender

    def fitting(self, entries: Iterable[Entry]) -> Iterator[tuple[list[Entry], ServiceBusMessageBatch | None]]:
        """The entries in batches of a size that the entity takes, in order. An entry that fits into no batch comes
        alone, with None."""
        sender = self.open()
        members: list[Entry] = []
        batch = sender.create_message_batch()
        for entry in entries:
            if members and not _added(batch, entry):
                yield members, batch
                members, batch = [], sender.create_message_batch()
            if not members and not _added(batch, entry):
                yield [entry], None
                continue
            members.append(entry)
        if members:
            yield members, batch

    def excess(self, message: ServiceBusMessage) -> str | None:
        """Why a message is too large even alone, or None. The service would end the link, and the client would not say
        why."""
        limit = largest_message(self._sender)
        batch = ServiceBusMessageBatch(1 << 62)
        empty = batch.size_in_bytes
        batch.add_message(message)
        size = batch.size_in_bytes - empty - 8  # a batch adds these to each message
        return f"{size} bytes; the queue or topic takes {limit}" if 0 < limit < size else None

    def send(self, what: ServiceBusMessage | ServiceBusMessageBatch, deadline: float) -> None:
        """Send, and wait until it is accepted. Raises what the client raises."""
        if self.given_up:
            raise TimeoutError("there was no time left to send it")
        self.open().send_messages(what, timeout=max(0.001, deadline - time.monotonic()))
        self._used = time.monotonic()

    def _client(self, opening: ExitStack) -> ServiceBusClient:
        address = self._address
        options: dict[str, Any] = {"retry_total": 0, "try_timeout": self._timeout}  # the relay decides about retries
        if address.emulator:
            return ServiceBusClient.from_connection_string(address.connection_string, **options)
        options["ssl_context"] = self._tls()
        if address.port is not None:  # the client takes a port only as that of a gateway on the way
            options |= {"custom_endpoint_address": f"sb://{address.place}", "transport_type": TransportType.Amqp}
        if address.policy is not None:
            return ServiceBusClient.from_connection_string(address.connection_string, **options)
        credential = opening.enter_context(closing(import_module("azure.identity").DefaultAzureCredential()))
        return ServiceBusClient(address.host, credential, **options)

    def _tls(self) -> ssl.SSLContext:
        timeout, sockets = self._timeout, self._sockets

        class Socket(ssl.SSLSocket):
            """A socket with a time limit for the handshake, for which the client would wait for ever."""

            def do_handshake(self, block: bool = False) -> None:
                sockets.add(self)
                self.settimeout(timeout)
                super().do_handshake(block)

        context = ssl.create_default_context(cafile=self._address.ca_file or certifi.where())
        context.sslsocket_class = Socket
        return context


def _added(batch: ServiceBusMessageBatch, entry: Entry) -> bool:
    try:
        batch.add_message(entry.message)
    except MessageSizeExceededError:
        return False
    return True
