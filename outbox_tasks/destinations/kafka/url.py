"""What the URL of a Kafka destination says: the topic, and properties of librdkafka."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings.destination import HIDDEN, Destination, split

OPTIONS = {
    "sasl": "sasl.mechanism",
    "ca": "ssl.ca.location",
    "compression": "compression.type",
    "partitioner": "partitioner",
    "max_message_bytes": "message.max.bytes",
}
"""Options of the URL that have a name of their own."""

ANY = "librdkafka."
"""Before the name of any other property."""

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
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = options.pop("tls", "false")
    properties = {OPTIONS.get(name, name.removeprefix(ANY)): value for name, value in options.items()}
    rules = [
        (all(SERVER.fullmatch(server) for server in servers.split(",")),
         "it must name brokers, as in kafka://localhost:9092,otherhost:9092/orders"),
        (TOPIC.fullmatch(topic), "a topic's name has 1 to 249 characters of A-Z, a-z, 0-9, '.', '_' and '-'"),
        (tls in ("true", "false"), "tls is true or false"),
        (all(name in OPTIONS or name.startswith(ANY) for name in options),
         f"the options of a kafka:// URL are tls, {', '.join(OPTIONS)} and {ANY}<property>"),
        (not OURS & properties.keys(), f"these properties can't be changed: {', '.join(sorted(OURS))}"),
    ]  # fmt: skip
    for holds, rule in rules:
        if not holds:
            raise ConfigurationError(setting=f"destinations.{destination.name}.url", value=HIDDEN, rule=rule)
    return topic, {"bootstrap.servers": servers, **_security(login, "sasl" in options, tls == "true"), **properties}


def _security(login: str, sasl: bool, tls: bool) -> dict[str, str]:
    if not login and not sasl:
        return {"security.protocol": "SSL" if tls else "PLAINTEXT"}
    found = {"security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    if login:
        user, _, password = login.partition(":")
        found |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    return found
