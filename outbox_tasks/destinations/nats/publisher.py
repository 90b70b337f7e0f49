"""NATS JetStream: `nats://user:password@host:4222/subject`, published with acknowledgement, a batch at once.

The headers are those of the CloudEvents binding for NATS, binary mode (`ce-id`, …), with the message's own beside them.
`Nats-Msg-Id` is the message's id, by which JetStream drops repetitions.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from nats.errors import Error

from outbox_tasks.destinations.common import options
from outbox_tasks.destinations.nats.link import Entry, Link, code_of
from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination, split
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

OPTIONS: options.Options = {"by_type": options.FLAG, "tls": options.FLAG}
HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
SUBJECT = re.compile(r"[^\s\x00.*>]+(\.[^\s\x00.*>]+)*")
UNCODED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that an attribute's header has as they are. The binding wants all others percent-encoded."""


class NatsPublisher:
    """Publishes to one subject. Sent means that a stream has acknowledged the message."""

    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._timeout = settings.send_timeout
        self.subject, self._by_type, self._options = _read(destination)
        self._link: Link | None = None

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Send all in order, then wait for the acknowledgements."""
        deadline = time.monotonic() + self._timeout
        entries, outcomes = encoded(messages, self._entry)
        if not entries:
            return list(outcomes.values())
        failed = Outcome.behind()
        try:
            link = self._connected(deadline)
            link.run(link.send(entries, outcomes, self._timeout), deadline)
        except (Error, OSError) as error:
            self.close()
            failed = Outcome.outage(code_of(error), str(error) or type(error).__name__)
        except BaseException:  # such as a time limit: then nobody knows the state of the loop
            self.close()
            raise
        return [outcomes.get(index, failed) for index in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connected(self, deadline: float) -> Link:
        if self._link is not None and not self._link.lives(deadline):
            self.close()
        if self._link is None:
            self._link = Link()
            self._link.run(self._link.connect(self._options, self._timeout / 2), deadline)
        return self._link

    def _entry(self, message: LeasedMessage) -> Entry:
        subject = f"{self.subject}.{message.event_type}" if self._by_type else self.subject
        if self._by_type and not SUBJECT.fullmatch(message.event_type):
            raise PermanentError(f"{message.event_type!r} can't be a part of a NATS subject", code="bad_subject")
        headers = {f"ce-{name}": quote(value, UNCODED) for name, value in attributes(message, self._source).items()}
        headers["ce-specversion"] = "1.0"
        headers["ce-datacontenttype"] = quote(message.content_type, UNCODED)
        headers["Nats-Msg-Id"] = message.id
        return subject, message.payload, headers | _own(message)


def _own(message: LeasedMessage) -> dict[str, str]:
    """The message's own headers; a name gets the prefix `h_` if the server or a reader would act upon it."""
    result = {}
    for name, value in own_headers(message).items():
        if not HEADER_NAME.fullmatch(name) or UNPRINTABLE.search(value):
            raise PermanentError(f"the header {name!r} can't be a header of NATS", code="bad_headers")
        taken = name.lower().startswith(("nats-", "ce-")) or name.lower() == "content-type"
        result[f"h_{name}" if taken else name] = value
    return result


def _read(destination: Destination) -> tuple[str, bool, dict[str, Any]]:
    """Subject, whether the event type is added, and the client's options. Raises `ConfigurationError`."""
    parts = split(destination.url)
    login, _, hosts = parts.netloc.rpartition("@")
    subject = unquote(parts.path.removeprefix("/")) or destination.name
    values = options.read(destination, OPTIONS)
    servers = [urlsplit(f"nats://{host}") for host in hosts.split(",")]
    options.check(
        destination,
        (all(server.hostname for server in servers), "it must name a host, as in nats://localhost:4222/shop.orders"),
        (
            SUBJECT.fullmatch(subject) and "#" not in destination.url,
            "its path is not a subject that can be published to, such as shop.orders",
        ),
    )
    client: dict[str, Any] = {"servers": [f"nats://{_bracketed(s.hostname)}:{s.port or 4222}" for s in servers]}
    user, colon, password = login.partition(":")
    if login:
        client |= {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
    if values.get("tls"):
        client["tls"] = ssl.create_default_context()
    return subject, values.get("by_type", False), client


def _bracketed(host: str | None) -> str:
    return f"[{host}]" if host and ":" in host else f"{host}"
