"""The destinations: whether they have publishers, and whether their servers can be reached. Nothing is sent."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

from outbox_tasks.broker.places import joined
from outbox_tasks.destinations import load
from outbox_tasks.errors import ConfigurationError, NotInstalled, PasswordUnavailable, UnknownPublisher
from outbox_tasks.operating.problems.problem import error
from outbox_tasks.operating.problems.site import ANSWER_SECONDS, CONNECT_SECONDS, Problems, Site, in_thread
from outbox_tasks.settings.destination import Destination, split
from outbox_tasks.text import redacted

PORTS = {
    "amqp": 5672, "amqps": 5671, "http": 80, "https": 443, "kafka": 9092, "mqtt": 1883, "mqtts": 8883, "nats": 4222,
    "pyamqp": 5672, "redis": 6379, "rediss": 6379, "redis+stream": 6379, "rediss+stream": 6379, "sentinel": 26379,
    "valkey": 6379, "valkeys": 6379,
}  # fmt: skip
"""By scheme, the port that a URL means if it names none."""

Address = tuple[str, int]
"""A host and a port."""


def publishers(site: Site) -> Problems:
    """Whether each destination has a publisher that understands its URL, and the client that it needs."""
    settings = site.settings
    if not settings.destinations:
        yield error(
            "no_destinations", f"No destination is configured: {settings.origin}.",
            "Applications can publish nothing: each message is refused. Workers and drain do not start.",
            "Add [destinations.<name>] with a url to outbox.toml, or set OUTBOX_CONFIG or OUTBOX_DESTINATIONS.",
        )  # fmt: skip
    for name, destination in settings.destinations.items():
        if settings.broker_url is None and destination.takes_the_relays_broker:
            continue  # `broker_unknown` says that the broker is not known here
        cause = "Workers do not start, or the messages of this destination are not sent."
        try:
            load(destination, settings.limits_of(name)).close()
        except NotInstalled as missing:
            yield error(
                "publisher_missing", f"{name} needs a client that is not installed here ({missing.missing}).", cause,
                f"pip install {missing.packages}, here and wherever publish workers run", which=name,
            )  # fmt: skip
        except UnknownPublisher as unknown:
            yield error(
                "publisher_missing",
                f"{name} has the URL scheme {unknown.scheme!r}, but no publisher for it is installed.", cause,
                f"Correct the URL, or install the package that brings it. There are: {unknown.known}.", which=name,
            )  # fmt: skip
        except ConfigurationError as refused:
            yield error(
                "destination_url", str(refused), cause, f"Correct the url of [destinations.{name}].", which=name
            )


def passwords(site: Site) -> Problems:
    """Whether each destination's password can be had. If those of the database or the broker can't,
    other checks say so."""
    for name, destination in site.settings.destinations.items():
        try:
            if destination.password is not None:
                destination.password.ask_anew()
        except PasswordUnavailable as unavailable:
            yield error(
                "password_unavailable",
                f"The password of {name} could not be had from {unavailable.source}: {unavailable.reason}.",
                "If the publish workers can't get it either, its messages wait, and spend no attempts.",
                f"Let {unavailable.source} give the password, or correct password in [destinations.{name}].",
                which=name,
            )


def reachable(site: Site) -> Problems:
    """Whether a server of each destination takes connections. Those whose URL names no host are not tried."""
    by_name: dict[str, Sequence[Address]] = {}
    for name, destination in site.settings.destinations.items():
        with suppress(ValueError):  # `publishers` reports a URL that can't be read
            by_name[name] = addresses(destination, site.settings.broker_url)
    reasons = _connection_errors({address for tried in by_name.values() for address in tried})
    for name, tried in by_name.items():
        refusals = [f"{host}:{port}: {reason}" for host, port in tried if (reason := reasons[host, port])]
        if tried and len(refusals) == len(tried):
            yield error(
                "destination_away",
                f"{name} ({redacted(site.settings.destinations[name].url)}) can't be reached from here: "
                f"{', '.join(refusals)}.",
                "If the publish workers can't reach it either, its messages wait, and spend no attempts.",
                "Start it, or correct its url. See that its name resolves, and that firewalls let this host out.",
                which=name,
            )


def addresses(destination: Destination, broker_url: str | None) -> Sequence[Address]:
    """The servers of a destination: to reach one of them is enough. Empty if its URL names no host and port. Raises
    `ValueError` if the URL can't be read."""
    urls = [destination.url]
    if destination.scheme == "celery":
        urls = [url for url in (destination.option("broker") or joined(broker_url)).split(";") if "://" in url]
    servers = []
    for url in urls:
        parts = split(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            server = urlsplit(f"//{host}")
            port = server.port or PORTS.get(parts.scheme)
            if server.hostname and port:
                servers.append((server.hostname, port))
    return servers


def _connection_errors(servers: Iterable[Address]) -> Mapping[Address, str | None]:
    """Why each of these servers takes no connection; None: it takes one."""

    def connect(address: Address) -> str | None:
        try:
            socket.create_connection(address, timeout=ANSWER_SECONDS).close()
        except (OSError, UnicodeError) as failed:
            return getattr(failed, "strerror", None) or str(failed)
        return None

    asked = {address: in_thread(partial(connect, address)) for address in servers}
    wait(asked.values(), ANSWER_SECONDS + CONNECT_SECONDS)
    return {address: future.result() if future.done() else "no answer" for address, future in asked.items()}
