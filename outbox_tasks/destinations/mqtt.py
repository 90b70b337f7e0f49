"""MQTT 5: `mqtt://user:password@host:1883/topic`, published with QoS 1, as many at once as the server takes.

Without a topic in the path, it is the destination's name; `?retain=true` lets the server keep the last message of the
topic. `mqtts://host:8883/topic` is TLS, with the certificates that the system trusts. The user properties are those of
the CloudEvents binding for MQTT, binary mode (`id`, `type`, …, without prefix), and the message's own headers as
`h_<name>`, which can't be taken for an attribute; the content type is MQTT's own.
"""

from __future__ import annotations

import math
import re
import select
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties, VariableByteIntegers
from paho.mqtt.reasoncodes import ReasonCode

from outbox_tasks.errors import ConfigurationError, OutageError, PermanentError
from outbox_tasks.events import attributes, own_headers
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.settings import HIDDEN, Destination, Settings

Verdict = tuple[Callable[[str, str], Outcome], str, str]

ANSWERS: dict[int, Verdict] = {
    0x80: (Outcome.retry, "refused", "unspecified error"),
    0x83: (Outcome.retry, "refused", "implementation specific error"),
    0x87: (Outcome.outage, "unauthorized", "not authorized"),
    0x90: (Outcome.outage, "unroutable", "topic name invalid"),
    0x91: (Outcome.retry, "refused", "packet identifier in use"),
    0x95: (Outcome.dead, "too_large", "packet too large"),
    0x97: (Outcome.outage, "quota_exceeded", "quota exceeded"),
    0x99: (Outcome.dead, "bad_payload", "payload format invalid"),
}
"""Reason codes of a PUBACK → outcome, code and text. Below 0x80 is success; 0x10 is that nobody has subscribed."""

OUTAGES = {
    0x86: "unauthorized",  # bad user name or password
    0x87: "unauthorized",  # not authorized
    0x8A: "unauthorized",  # banned
    0x8C: "unauthorized",  # bad authentication method
    0x90: "unroutable",  # topic name invalid
    0x97: "quota_exceeded",
    0x9A: "retain_not_supported",
    0x9B: "qos_not_supported",
}
"""Reason codes of a CONNACK or DISCONNECT that end the connection → code of the outage; else it is `connection`."""

TROUBLE: tuple[tuple[type[Exception], str], ...] = (
    (ssl.SSLError, "tls"),
    (TimeoutError, "timeout"),
    (OSError, "connection"),
)
"""What the client raises → the code of an outage."""

UNANSWERED = Outcome.retry("bad_answer", "there was no answer")

IDLE = 30.0
"""Seconds after which a connection is made anew: nobody sends pings while nothing is published."""
LONGEST = 65_535
"""Bytes of a text of MQTT."""

ALONE = 65_536
"""Bytes; a larger message goes with no other on its way. If it is refused, and the connection closed over it, nothing
else is in doubt."""

FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""Characters for which a server may close the connection (MQTT 5, 1.5.4): mosquitto does, on the neighbours too."""


class MqttPublisher:
    """Publishes to one topic. Sent means that the server has acknowledged the message."""

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._timeout = settings.send_timeout
        self._setting = f"destinations.{destination.name}.url"
        parts = urlsplit(destination.url)
        self._tls = parts.scheme == "mqtts"
        self._host, self._port = parts.hostname or "", parts.port or (8883 if self._tls else 1883)
        self._login = tuple(part and unquote(part) for part in (parts.username, parts.password))
        self.topic = unquote(parts.path.removeprefix("/")) or destination.name
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        retain = query.pop("retain", "false")
        self._retain = retain == "true"
        rule = None
        if query or retain not in ("true", "false"):
            rule = "the only option of an mqtt:// URL is retain=true"
        elif not self._host:
            rule = "it must name a host, as in mqtt://localhost:1883/shop/orders"
        elif (
            re.search(r"[+#]", self.topic)
            or "#" in destination.url
            or FORBIDDEN.search(self.topic)
            or len(self.topic.encode()) > LONGEST
        ):
            rule = "its path is not a topic that can be published to, such as shop/orders"
        if rule:
            raise ConfigurationError(setting=self._setting, value=HIDDEN, rule=rule)
        self._link: _Link | None = None

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """In order, with as many unacknowledged at a time as the server allows.

        A server may close the connection over a message that it has refused, even before we have read the refusal. So
        after a loss the rest goes on over a new connection, one by one, and only a second loss ends it.
        """
        deadline = time.monotonic() + self._timeout
        outcomes: dict[int, Outcome] = {}
        entries: dict[int, tuple[bytes, _Packed]] = {}
        for index, message in enumerate(messages):
            try:
                entries[index] = message.payload, self._properties(message)
            except PermanentError as error:
                outcomes[index] = Outcome.dead(error.code, str(error))
        failed = None
        careful = False
        while failed is None and len(outcomes) < len(messages):
            known = set(outcomes)
            left = {index: entry for index, entry in entries.items() if index not in known}
            link = None
            try:
                link = self._connected(deadline)
                link.send(self.topic, self._retain, left, outcomes, deadline, one_by_one=careful)
            except (OutageError, OSError) as error:
                self._drop()
                refused = any(outcomes[index].result is Result.DEAD for index in outcomes.keys() - known)
                if link is None or (careful and not refused):
                    failed = Outcome.outage(_code(error), str(error) or type(error).__name__)
                careful = True
            except BaseException:  # a time limit can strike anywhere, and leaves half a packet
                self._drop()
                raise
        return [outcomes.get(index) or failed or UNANSWERED for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.client.disconnect()
        self._drop()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connected(self, deadline: float) -> _Link:
        if self._link is not None and not self._link.lives():
            self._drop()
        if self._link is None:
            user, password = self._login
            self._link = _Link(user, password, self._tls)
            self._link.connect(self._host, self._port, deadline)
        return self._link

    def _properties(self, message: LeasedMessage) -> _Packed:
        pairs = [("specversion", "1.0"), *attributes(message, self._source).items()]
        if message.headers != {}:
            pairs += [(f"h_{name}", value) for name, value in own_headers(message).items()]
        for text in (message.content_type, *(text for pair in pairs for text in pair)):
            if FORBIDDEN.search(text) or (len(text) > LONGEST // 4 and len(text.encode()) > LONGEST):
                raise PermanentError(f"{text[:40]!r}… can't be a text of MQTT", code="bad_headers")
        return _Packed(message.content_type, pairs)


class _Packed(Properties):
    """Properties in the form of the wire. paho packs those of a message in as much time as all the rest takes."""

    def __init__(self, content_type: str, pairs: Sequence[tuple[str, str]]) -> None:
        packed = b"\x03" + _text(content_type)
        packed += b"".join(b"\x26" + _text(name) + _text(value) for name, value in pairs)
        # paho lets no attributes but those of MQTT be set.
        length: bytes = VariableByteIntegers.encode(len(packed))  # type: ignore[no-untyped-call]
        object.__setattr__(self, "packed", length + packed)

    def pack(self) -> bytes:
        """What paho asks for."""
        packed: bytes = object.__getattribute__(self, "packed")
        return packed


def _text(value: str) -> bytes:
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


class _Client(Client):
    """paho's client, with the acknowledgements as they come: it takes some that servers send (mosquitto's 0x95,
    packet too large) for a broken packet, and ends the connection."""

    answers: dict[int, int]

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        number = int.from_bytes(packet[:2], "big")
        with self._out_message_mutex:
            if self._out_messages.pop(number, None) is not None:
                self.answers[number] = packet[2] if len(packet) > 2 else 0
        return MQTTErrorCode.MQTT_ERR_SUCCESS


class _Link:
    """A connection, which is worked on only while something is sent: no thread, nothing to lose in a fork.

    It never reconnects: a client that did would send again, by itself and later, what has been given back as failed.
    """

    def __init__(self, user: str | None, password: str | None, tls: bool) -> None:
        # 23 letters and digits, which every server must take; new each time, for nobody's session is to be taken over.
        name = f"outbox{uuid4().hex[:17]}"
        self.client = _Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.answers = {}
        self.client.max_inflight_messages = 0  # we count ourselves: paho does not know the server's limit
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        if user is not None:
            self.client.username_pw_set(user, password)
        if tls:
            self.client.tls_set_context(ssl.create_default_context())
        self._greeting: Properties | None = None
        self._welcome = False
        self._lost: OutageError | None = None
        self._used = 0.0

    def connect(self, host: str, port: int, deadline: float) -> None:
        """Connect, and wait until the server has let us in."""
        left = deadline - time.monotonic()
        self.client.connect_timeout = max(0.01, left / 2)
        self.client.connect(host, port, keepalive=math.ceil(IDLE + left), clean_start=True)
        self._work(lambda: self._welcome, deadline)

    def lives(self) -> bool:
        """Whether it was used a moment ago, and the server has not closed it since."""
        with suppress(OSError):
            while self._ready(0.0):
                self.client.loop_read()
        return self.client.socket() is not None and time.monotonic() - self._used < IDLE

    def send(
        self,
        topic: str,
        retain: bool,
        entries: Mapping[int, tuple[bytes, _Packed]],
        outcomes: dict[int, Outcome],
        deadline: float,
        *,
        one_by_one: bool,
    ) -> None:
        """Publish all; `outcomes` fills as the answers come."""
        window: int = 1 if one_by_one else getattr(self._greeting, "ReceiveMaximum", LONGEST)
        largest: int = getattr(self._greeting, "MaximumPacketSize", sys.maxsize)
        waiting: dict[int, int] = {}
        alone = False

        def settle() -> None:
            for number in list(self.client.answers):
                outcomes[waiting.pop(number)] = _outcome(self.client.answers.pop(number))

        try:
            for index, (payload, properties) in entries.items():
                size = 16 + len(topic.encode()) + len(properties.pack()) + len(payload)
                if size > largest:  # the server would close the connection, on the neighbours too
                    outcomes[index] = Outcome.dead("too_large", f"{size} bytes; the server takes {largest}")
                    continue
                limit = 1 if alone or size > ALONE else window
                while len(waiting) >= limit:
                    self._work(lambda: bool(self.client.answers), deadline)
                    settle()
                alone = size > ALONE
                waiting[self.client.publish(topic, payload, 1, retain, properties).mid] = index
            self._work(lambda: len(self.client.answers) == len(waiting), deadline)
        finally:
            settle()
        self._used = time.monotonic()

    def close(self) -> None:
        """Close the socket, whatever is still to be written."""
        if (opened := self.client.socket()) is not None:
            opened.close()

    def _work(self, done: Callable[[], bool], deadline: float) -> None:
        """Read and write until it is done. Raises `OutageError` or `TimeoutError`."""
        while not done():
            if self._lost is not None:
                raise self._lost
            if self.client.socket() is None:
                raise OutageError("the connection was closed", code="connection")
            if self._ready(deadline - time.monotonic()):
                self.client.loop_read()
            if self.client.want_write():
                self.client.loop_write()

    def _ready(self, seconds: float) -> bool:
        """Wait until there is something to read, or room to write. Raises `TimeoutError`."""
        opened = self.client.socket()
        if opened is None:
            return False
        poll = select.poll()  # `select` knows no file descriptors above 1023
        poll.register(opened, select.POLLIN | (select.POLLOUT if self.client.want_write() else 0))
        found = poll.poll(max(0.0, seconds) * 1000)
        if not found:
            raise TimeoutError("no acknowledgement in time")
        return bool(found[0][1] & ~select.POLLOUT)

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
            code = OUTAGES.get(reason.value, "connection")
            self._lost = OutageError(f"the connection was ended: {reason.getName().lower()}", code=code)


def _outcome(reason: int) -> Outcome:
    """What a PUBACK means."""
    if reason < 0x80:
        return Outcome.sent()
    make, code, text = ANSWERS.get(reason, (Outcome.retry, "refused", "unknown reason"))
    return make(code, f"{text} (0x{reason:02x})")


def _code(error: Exception) -> str:
    if isinstance(error, OutageError):
        return str(error.code)
    return next(code for kind, code in TROUBLE if isinstance(error, kind))
