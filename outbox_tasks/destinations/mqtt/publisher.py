"""MQTT 5: `mqtt://user:password@host:1883/topic`, published with QoS 1, as many at once as the server takes.

The user properties are those of the CloudEvents binding for MQTT, binary mode (without prefix). The message's own
headers are `h_<name>`, so that none can be taken for an attribute.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from outbox_tasks.destinations.common import options
from outbox_tasks.destinations.mqtt.link import TEXT_BYTES, Link, code_of
from outbox_tasks.errors import OutageError, PermanentError
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

UNANSWERED = Outcome.retry("bad_answer", "there was no answer")

FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""A server may close the connection because of these characters (MQTT 5, 1.5.4). mosquitto does it."""


class MqttPublisher:
    """Publishes to one topic. Sent means that the server has acknowledged the message."""

    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._timeout = settings.send_timeout
        parts = urlsplit(destination.url)
        self._tls = parts.scheme == "mqtts"
        self._host, self._port = parts.hostname or "", parts.port or (8883 if self._tls else 1883)
        self._login = tuple(part and unquote(part) for part in (parts.username, parts.password))
        self.topic = unquote(parts.path.removeprefix("/")) or destination.name
        wildcards = re.search(r"[+#]", self.topic) or "#" in destination.url
        too_long = len(self.topic.encode()) > TEXT_BYTES
        self._retain = options.read(destination, {"retain": options.FLAG}).get("retain", False)
        options.check(
            destination,
            (self._host, "it must name a host, as in mqtt://localhost:1883/shop/orders"),
            (
                not (wildcards or too_long or FORBIDDEN.search(self.topic)),
                "its path is not a topic that can be published to, such as shop/orders",
            ),
        )
        self._link: Link | None = None

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Publish in order. As many messages at a time may be unacknowledged as the server allows. A server may close
        the connection because of a message that it refuses. What was published then and has no answer is not published
        again here: its outcome says why."""
        deadline = time.monotonic() + self._timeout
        entries, outcomes = encoded(messages, lambda message: (message.payload, self._properties(message)))
        rest = UNANSWERED
        unsendable = len(outcomes)
        try:
            if entries:
                self._connected(deadline).send(self.topic, self._retain, entries, outcomes, deadline)
        except (OutageError, OSError) as error:
            self._drop()
            begun = len(outcomes) > unsendable
            rest = Outcome.behind() if begun else Outcome.outage(code_of(error), str(error) or type(error).__name__)
        except BaseException:  # such as a time limit: half a packet may be sent
            self._drop()
            raise
        return [outcomes.get(index) or rest for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.client.disconnect()
        self._drop()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connected(self, deadline: float) -> Link:
        if self._link is not None and not self._link.lives():
            self._drop()
        if self._link is None:
            user, password = self._login
            self._link = Link(user, password, self._tls)
            self._link.connect(self._host, self._port, deadline)
        return self._link

    def _properties(self, message: LeasedMessage) -> Properties:
        pairs = [("specversion", "1.0"), *attributes(message, self._source).items()]
        pairs += [(f"h_{name}", value) for name, value in own_headers(message).items()]
        for text in (message.content_type, *(text for pair in pairs for text in pair)):
            if FORBIDDEN.search(text) or (len(text) > TEXT_BYTES // 4 and len(text.encode()) > TEXT_BYTES):
                raise PermanentError(f"{text[:40]!r}… can't be a text of MQTT", code="bad_headers")
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType, properties.UserProperty = message.content_type, pairs
        return properties
