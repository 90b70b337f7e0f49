"""What the URL of a Kafka destination says: the topic, and properties of librdkafka."""

from __future__ import annotations

import re
from urllib.parse import unquote

from outbox_tasks.destinations.common import options
from outbox_tasks.settings.destination import Destination, split

NAMES = {
    "sasl": "sasl.mechanism",
    "ca": "ssl.ca.location",
    "compression": "compression.type",
    "partitioner": "partitioner",
    "max_message_bytes": "message.max.bytes",
}
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

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?")


def read(destination: Destination) -> tuple[str, dict[str, str]]:
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
    return topic, {"bootstrap.servers": servers, **_security(login, "sasl" in values, tls), **properties}


def _security(login: str, sasl: bool, tls: bool) -> dict[str, str]:
    if not login and not sasl:
        return {"security.protocol": "SSL" if tls else "PLAINTEXT"}
    values = {"security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    if login:
        user, _, password = login.partition(":")
        values |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    return values
