"""A connection to an MQTT 5 server, and what its answers mean."""

from __future__ import annotations

import math
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from outbox_tasks.destinations.mqtt.internals import AcknowledgedClient
from outbox_tasks.errors import OutageError
from outbox_tasks.model import Outcome, Result

REASONS = {
    0x86: (Result.OUTAGE, "unauthorized"),  # bad user name or password
    0x87: (Result.OUTAGE, "unauthorized"),  # not authorized
    0x90: (Result.OUTAGE, "unroutable"),  # topic name invalid
    0x95: (Result.DEAD, "too_large"),
    0x97: (Result.OUTAGE, "quota_exceeded"),
}
"""What the server's reasons mean. Below 0x80 is success; 0x10 is that nobody has subscribed. Any other is a retry, or
an outage (`connection`), if the connection ends."""

TROUBLE: tuple[tuple[type[Exception], str], ...] = (
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (OSError, "connection"),
)
"""What the client raises → the code of an outage."""


IDLE_SECONDS = 30.0
"""After so long an idle connection is replaced: nobody sends pings while nothing is published."""
TEXT_BYTES = 65_535
"""The longest text of MQTT, and the most messages without an acknowledgement."""

QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux has it."""


class Socket(ssl.SSLSocket):
    """A socket that closes itself if the handshake fails: paho leaves it open."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class Link:
    """A connection that works only while something is sent. It has no thread that a fork could lose.

    It never reconnects: a client that reconnects would later send messages that already count as failed.
    """

    def __init__(self, user: str | None, password: str | None, tls: bool) -> None:
        # Every server must take 23 letters and digits. The name is new each time, so that it takes over nobody's
        # session.
        name = f"outbox{uuid4().hex[:17]}"
        self.client = AcknowledgedClient(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.answers = {}
        self.client.max_inflight_messages = 0  # we count ourselves: paho does not know the server's limit
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        if user is not None:
            self.client.username_pw_set(user, password)
        if tls:
            context = ssl.create_default_context()
            context.sslsocket_class = Socket
            self.client.tls_set_context(context)
        self._greeting: Properties | None = None
        self._welcome = False
        self._lost: OutageError | None = None
        self._used = 0.0

    def connect(self, host: str, port: int, deadline: float) -> None:
        """Connect, and wait until the server has accepted us."""
        remaining = deadline - time.monotonic()
        self.client.connect_timeout = max(0.01, remaining / 2)
        self.client.connect(host, port, keepalive=math.ceil(IDLE_SECONDS + remaining), clean_start=True)
        self._work(lambda: self._welcome, deadline)

    def lives(self) -> bool:
        """Whether it was used a moment ago, and the server has not closed it since."""
        with suppress(OSError):
            while self._ready(0.0):
                self.client.loop_read()
        return self.client.socket() is not None and time.monotonic() - self._used < IDLE_SECONDS

    def send(
        self,
        topic: str,
        retain: bool,
        entries: Mapping[int, tuple[bytes, Properties]],
        outcomes: dict[int, Outcome],
        deadline: float,
    ) -> None:
        """Publish all; `outcomes` fills as the answers come."""
        window: int = getattr(self._greeting, "ReceiveMaximum", TEXT_BYTES)
        largest: int = getattr(self._greeting, "MaximumPacketSize", sys.maxsize)
        waiting: dict[int, int] = {}

        def settle() -> None:
            for number in list(self.client.answers):
                outcomes[waiting.pop(number)] = _outcome(self.client.answers.pop(number))

        try:
            for index, (payload, properties) in entries.items():
                packed: bytes = properties.pack()  # type: ignore[no-untyped-call]
                size = 16 + len(topic.encode()) + len(packed) + len(payload)
                if size > largest:  # the server would close the connection
                    outcomes[index] = Outcome.dead("too_large", f"{size} bytes; the server takes {largest}")
                    continue
                while len(waiting) >= window:
                    self._work(lambda: bool(self.client.answers), deadline, several=len(waiting) > 1)
                    settle()
                waiting[self.client.publish(topic, payload, 1, retain, properties).mid] = index
            self._work(lambda: len(self.client.answers) == len(waiting), deadline, several=len(waiting) > 1)
        except (OutageError, OSError) as error:
            settle()
            outcomes.update(dict.fromkeys(waiting.values(), _unanswered(error, together=len(entries) > 1)))
            raise
        finally:
            settle()
        self._used = time.monotonic()

    def close(self) -> None:
        """Close the socket, whatever is still to be written."""
        if (opened := self.client.socket()) is not None:
            opened.close()
        # With its callbacks the client would keep two sockets until garbage is collected.
        self.client.on_connect = self.client.on_disconnect = None

    def _work(self, done: Callable[[], bool], deadline: float, *, several: bool = False) -> None:
        """Read and write until it is done. Raises `OutageError` or `TimeoutError`."""
        while not done():
            if self.client.socket() is None:
                raise self._lost or OutageError("the connection was closed", code="connection")
            if several:
                self._hasten()
            if self._ready(deadline - time.monotonic()):
                self.client.loop_read()
            if self.client.want_write():
                self.client.loop_write()

    def _hasten(self) -> None:
        """Let the system acknowledge at once what has arrived. Many servers (mosquitto by default) hold back the second
        PUBACK until the first one is acknowledged on TCP, which otherwise takes 40 ms for each batch."""
        opened: Any = self.client.socket()
        if QUICKACK is not None:
            opened.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)  # it does not last

    def _ready(self, seconds: float) -> bool:
        """Wait until there is something to read, or room to write. Raises `TimeoutError`."""
        opened = self.client.socket()
        if opened is None:
            return False
        poll = select.poll()  # `select` knows no file descriptors above 1023
        poll.register(opened, select.POLLIN | (select.POLLOUT if self.client.want_write() else 0))
        ready = poll.poll(max(0.0, seconds) * 1000)
        if not ready:
            raise TimeoutError("no acknowledgement in time")
        return bool(ready[0][1] & ~select.POLLOUT)

    def _on_connect(
        self, client: Client, data: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self._end(reason)
        else:
            self._greeting, self._welcome = properties, True

    def _on_disconnect(
        self, client: Client, data: Any, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._end(reason)

    def _end(self, reason: ReasonCode) -> None:
        if self._lost is None:  # what came first says why
            result, code = REASONS.get(reason.value, (Result.RETRY, ""))
            text = f"the connection was ended: {reason.getName().lower()}"
            self._lost = OutageError(text, code=code if result is Result.OUTAGE else "connection")


def _outcome(reason: int) -> Outcome:
    """What a PUBACK means."""
    if reason < 0x80:
        return Outcome.sent()
    result, code = REASONS.get(reason, (Result.RETRY, "refused"))
    return Outcome(result, code, f"the server's reason is 0x{reason:02x}")


def _unanswered(error: Exception, *, together: bool) -> Outcome:
    """What was published and not acknowledged: the server may have taken it, or ended the connection over it."""
    text = f"{str(error) or type(error).__name__}; it may have been taken"
    if together and not isinstance(error, TimeoutError):
        return Outcome.unforeseen(text, together=True)
    return Outcome.outage(code_of(error), text)


def code_of(error: Exception) -> str:
    if isinstance(error, OutageError):
        return str(error.code)
    return next(code for kind, code in TROUBLE if isinstance(error, kind))
