"""RabbitMQ: plain AMQP 0-9-1 with publisher confirms, a batch at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import amqp
from amqp import spec
from kombu.transport import pyamqp

from outbox_tasks.broker.login import connection
from outbox_tasks.destinations.kombu.common import (
    UNROUTABLE,
    UNWRITABLE,
    Entry,
    outcome_of,
    parts_of,
    tls_of,
)
from outbox_tasks.model import Outcome, Result
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination


class RabbitSender:
    """AMQP 0-9-1 with publisher confirms.

    kombu waits for the confirm of each message before it sends the next. Here a whole batch is written, and then its
    confirms are read, which is several times as fast. A message that no queue takes comes back (`basic.return`), with
    its id, before its confirm.
    """

    def __init__(self, destination: Destination, settings: Settings) -> None:
        url, options = parts_of(destination)
        exchange, queue, self._declares = options.get("exchange", ""), options.get("queue"), options.get("declare")
        if not exchange and "routing_key" in options:
            raise destination.unusable("routing_key needs an exchange; queue=<name> names a queue")
        if exchange and (queue or self._declares):
            raise destination.unusable("it names an exchange, or a queue, which declare=true declares")
        self._exchange = exchange
        # Through the default exchange, the routing key is the queue's name.
        self._key = options.get("routing_key") if exchange else queue or destination.name
        ssl = tls_of(options) if destination.scheme == "amqps" else {}
        if ssl.get("cert_reqs"):
            ssl["server_hostname"] = urlsplit(url).hostname  # py-amqp checks the name only if it is told one
        client = connection(
            urlunsplit(urlsplit(url)._replace(scheme="pyamqp")),  # amqp:// may be librabbitmq, which has no confirms
            destination.password,
            ssl=ssl or False,
            connect_timeout=settings.send_timeout / 2,
            transport_options={**destination.transport_options, "confirm_publish": False},
        )
        self._transport = client.transport
        self._transport.Connection = Link
        self._link: Any = None
        self._channel: Any = None
        self._tag = 0
        self._pending: dict[int, int] = {}
        self._returned: set[str | None] = set()
        self._entries: Sequence[Entry] = ()
        self._outcomes: dict[int, Outcome] = {}

    def send(self, entries: Sequence[Entry], deadline: float) -> list[Outcome]:
        """Publish, and wait for the confirms."""
        self._entries, self._outcomes = entries, {}
        try:
            self._open(deadline)
            self._confirmed(deadline)
        except BaseException as error:
            blocked = self._link is not None and self._link.blocked
            self._drop()  # confirms that nobody has read would count for other messages
            failed = _trouble(error, blocked=blocked)
            for number in range(len(entries)):
                self._outcomes.setdefault(number, failed)
        return [self._outcomes[number] for number in range(len(entries))]

    def close(self) -> None:
        """Close the connection. Waits a second at most for the broker."""
        with suppress(Exception):
            if self._link is not None:
                self._link.sock.settimeout(1)
                self._link.close()
        self._drop()

    def _open(self, deadline: float) -> None:
        if self._link is not None and not self._link.lives():
            self._drop()
        if self._link is None:
            self._link = self._transport.establish_connection()
            self._link.limit_waits(deadline)
            channel = self._channel = self._link.channel()
            if self._declares:
                channel.queue_declare(self._key, durable=True, auto_delete=False)
            self._listen()

    def _listen(self) -> None:
        """Turn confirms on, which counts the messages from one, and take what comes back."""
        self._channel.confirm_select()
        self._tag = 0
        self._pending = {}
        nacked = Outcome.retry("nacked", "the broker did not take it, as a full queue does")
        events = self._channel.events
        events["basic_ack"] = {partial(self._answered, Outcome.sent())}
        events["basic_nack"] = {partial(self._answered, nacked)}
        events["basic_return"] = {self._came_back}

    def _confirmed(self, deadline: float) -> None:
        """Send all together. If the broker closes the channel because of one of them, it does not say which one, nor
        which it has taken."""
        try:
            self._write(deadline)
            while self._pending:
                self._link.limit_waits(deadline)
                self._link.drain_events()
        except amqp.ChannelError as error:
            unconfirmed = [number for number in range(len(self._entries)) if number not in self._outcomes]
            self._link.limit_waits(deadline)
            self._listen()  # py-amqp has opened the channel again
            alone = len(unconfirmed) == 1 or isinstance(error, amqp.NotFound)
            text = f"the broker closed the channel because of one of several, which it may have taken: {error}"
            outcome = outcome_of(error) if alone else Outcome.unforeseen(text, together=True)
            self._outcomes.update(dict.fromkeys(unconfirmed, outcome))

    def _write(self, deadline: float) -> None:
        self._returned.clear()
        for number, entry in enumerate(self._entries):
            self._link.limit_waits(deadline)
            try:
                message = self._message(entry)
                key = entry.event_type if self._key is None else self._key
                # Not basic_publish: it reads from the broker before each message, which takes half as much CPU again.
                self._channel.send_method(
                    spec.Basic.Publish, "Bssbb", (0, self._exchange, key, True, False), content=message
                )
            except UNWRITABLE as error:
                self._outcomes[number] = Outcome.dead("bad_headers", f"AMQP can't express it: {error}")
                continue
            self._tag += 1
            self._pending[self._tag] = number

    def _message(self, entry: Entry) -> amqp.Message:
        size = sum(len(name.encode()) + len(value.encode()) + 6 for name, value in entry.headers.items())
        if size > self._link.frame_max - 2048:  # the other properties are at most half of this
            # The broker would close the connection over it, each time.
            raise ValueError(f"headers of {size} bytes do not fit into a frame of {self._link.frame_max}")
        return amqp.Message(
            entry.body,
            content_type=entry.content_type,
            content_encoding=entry.content_encoding,
            application_headers=entry.headers,
            message_id=entry.id,
            timestamp=entry.timestamp,
            delivery_mode=2,
        )

    def _answered(self, outcome: Outcome, tag: int, multiple: bool) -> None:
        tags = list(takewhile(lambda pending: pending <= tag, self._pending)) if multiple else [tag]
        for answered_tag in tags:
            number = self._pending.pop(answered_tag)
            came_back = self._entries[number].id in self._returned
            self._outcomes[number] = UNROUTABLE if came_back else outcome

    def _came_back(self, error: amqp.ChannelError, exchange: str, key: str, message: amqp.Message) -> None:
        self._returned.add(message.properties.get("message_id"))

    def _drop(self) -> None:
        if self._link is not None:
            self._link.collect()
        self._link = self._channel = None


def _trouble(error: BaseException, *, blocked: bool) -> Outcome:
    """What ends the whole send is never a message's fault."""
    outcome = outcome_of(error)
    if blocked and outcome.code == "timeout":
        return Outcome.outage("blocked", "the broker takes no messages: it is short of memory or disk space")
    if outcome.result is Result.DEAD:
        return Outcome.outage(outcome.code or "refused", outcome.error or "")
    return outcome


class Link(pyamqp.Connection):
    """A connection to RabbitMQ. Each wait for the broker has a time limit."""

    blocked = False

    def connect(self, callback: Any = None) -> None:
        """Connect. If that fails, close everything: py-amqp leaves the socket open when the broker refuses."""
        self.on_blocked, self.on_unblocked = self._when_blocked, self._when_unblocked
        try:
            super().connect(callback)
        except BaseException:
            self.collect()
            raise

    def limit_waits(self, deadline: float) -> None:
        """Let each read and write from now on end at the deadline."""
        self.sock.settimeout(max(0.001, deadline - time.monotonic()))

    def lives(self) -> bool:
        """Whether the broker has not closed it since the last send. Only a read can tell."""
        try:
            while True:
                self.drain_events(timeout=0)
        except TimeoutError:
            return True
        except Exception:
            return False

    def _when_blocked(self, reason: str) -> None:
        self.blocked = True

    def _when_unblocked(self) -> None:
        self.blocked = False
