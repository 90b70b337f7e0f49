"""Kafka: `kafka://[user:password@]host[:port][,host[:port]…]/topic`, through librdkafka (confluent-kafka).

The producer is idempotent and waits for all in-sync replicas. CloudEvents' Kafka binding, binary mode.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from confluent_kafka import KafkaException, Producer

from outbox_tasks.destinations.common import options
from outbox_tasks.destinations.kafka.session import DebugLog, Record, Session
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination, split
from outbox_tasks.settings.password import Password
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

NAMES = {"sasl": "sasl.mechanism", "ca": "ssl.ca.location"}
"""The options with a name of their own, and the properties of librdkafka that they set."""

ANY = "librdkafka."
"""Before the name of any other property."""

ANYTHING = options.matching("(?s).*", "what librdkafka takes")
OPTIONS: options.Options = {"tls": options.FLAG, **dict.fromkeys((*NAMES, ANY), ANYTHING)}

OURS = {
    "bootstrap.servers", "metadata.broker.list", "enable.idempotence", "enable.gapless.guarantee", "acks",
    "request.required.acks", "message.timeout.ms", "delivery.timeout.ms", "message.send.max.retries", "retries",
    "max.in.flight", "max.in.flight.requests.per.connection", "transactional.id", "plugin.library.paths",
}  # fmt: skip
"""Properties on which our promises rest: nobody else sets them."""

OAUTH = "OAUTHBEARER"
TOKEN_SECONDS = 60.0
"""After so many seconds, librdkafka must ask again for a token that does not say how long it may be used."""

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?")


class KafkaPublisher:
    """Produces to one topic. Sent means that all in-sync replicas have the message."""

    asks_password = True
    batch_size = 100

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._timeout = settings.send_timeout
        self.topic, properties = _read(destination)
        milliseconds = int(settings.send_timeout * 1000)
        self._conf: dict[str, Any] = {
            "client.id": "outbox_tasks",
            "log_level": 1,  # a higher level repeats at each reconnect what the outcomes say
            "partitioner": "murmur2_random",  # Java's default: any sender chooses the same partition for a key
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            # How long a topic may be unknown, as it is while the broker makes it.
            "topic.metadata.propagation.max.ms": milliseconds // 2,
            **properties,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": milliseconds,
        }
        asked = {} if destination.password is None else {"sasl.password": "asked for with each producer"}
        _check(destination, {**self._conf, **asked})
        self._session = PerProcess(partial(_session, self._conf, destination.password))

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """Send all at once. After any failure the producer is not used again: it may still hold lost messages."""
        deadline = time.monotonic() + self._timeout * 0.95
        records, outcomes = encoded(messages, self._record)
        if records:
            session = self._session.get()
            try:
                session.forget_errors()
                answers = session.send(self.topic, list(records.values()), deadline)
            except BaseException:  # a time limit, for example: nothing may be sent afterwards
                self.close()
                raise
            if session.troubled:
                self.close()
            outcomes.update(zip(records, answers, strict=True))
        return [outcomes[place] for place in range(len(messages))]

    def close(self) -> None:
        """Close the connections; nothing is left to be sent."""
        session = self._session.take()
        if session is not None:
            session.end()

    def _record(self, message: LeasedMessage) -> Record:
        ours = {f"ce_{name}": value for name, value in attributes(message, self._source).items()}
        ours |= {"ce_specversion": "1.0", "content-type": message.content_type}
        own = own_headers(message)
        # Found here, a bad text fails this message; found in `produce`, it would fail all.
        "".join((*own, *own.values(), *ours.values())).encode()
        headers = {name: value for name, value in own.items() if name.lower() not in ours} | ours
        return {"key": message.key, "value": message.payload, "headers": headers}


def _session(conf: dict[str, Any], password: Password | None) -> Session:
    """A producer with a login of its own. Raises `PasswordUnavailable`."""
    if password is None:
        return Session(conf)
    text = password.ask()  # without a token, librdkafka would wait for ten seconds
    if conf["sasl.mechanism"] == OAUTH:
        return Session({**conf, "oauth_cb": partial(_token, password)})
    return Session({**conf, "sasl.password": text})


def _token(password: Password, _: str) -> tuple[str, float]:
    """A token, and the time of its end. librdkafka asks again when four fifths of the time have passed."""
    token, seconds = password.ask_for_how_long()
    return token, time.time() + (seconds or TOKEN_SECONDS)


def _check(destination: Destination, conf: dict[str, Any]) -> None:
    """Have librdkafka read the properties, in a producer without brokers."""
    try:
        Producer({name: value for name, value in conf.items() if name != "bootstrap.servers"}, logger=DebugLog())
    except KafkaException as error:
        reason = re.sub(r'value "[^"]*"', "value", error.args[0].str())  # it may be a secret in the wrong place
        raise destination.unusable(f"librdkafka says: {reason}") from None


def _read(destination: Destination) -> tuple[str, dict[str, str]]:
    """The topic and the properties. Raises `ConfigurationError`."""
    parts = split(destination.url)
    login, _, servers = parts.netloc.rpartition("@")
    topic = parts.path.strip("/") or destination.name
    values = options.read(destination, OPTIONS)
    tls = values.pop("tls", False)
    properties = {NAMES.get(name, name.removeprefix(ANY)): value for name, value in values.items()}
    options.check(
        destination,
        (
            all(SERVER.fullmatch(server) for server in servers.split(",")),
            "it must name brokers, as in kafka://localhost:9092,otherhost:9092/orders",
        ),
        (TOPIC.fullmatch(topic), "a topic's name has 1 to 249 characters of A-Z, a-z, 0-9, '.', '_' and '-'"),
        (not OURS & properties.keys(), f"these properties can't be changed: {', '.join(sorted(OURS))}"),
    )
    sasl = "sasl" in values or destination.password is not None
    return topic, {"bootstrap.servers": servers, **_security(login, sasl, tls), **properties}


def _security(login: str, sasl: bool, tls: bool) -> dict[str, str]:
    if not login and not sasl:
        return {"security.protocol": "SSL" if tls else "PLAINTEXT"}
    values = {"security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    if login:
        user, _, password = login.partition(":")
        values |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    return values
