"""The hosts and ports that a destination's URL names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from outbox_tasks.broker.places import joined
from outbox_tasks.settings.destination import Destination, options_of, split

PORTS = {
    "amqp": 5672, "amqps": 5671, "http": 80, "https": 443, "kafka": 9092, "mqtt": 1883, "mqtts": 8883, "nats": 4222,
    "pyamqp": 5672, "redis": 6379, "rediss": 6379, "redis+stream": 6379, "rediss+stream": 6379, "sentinel": 26379,
    "valkey": 6379, "valkeys": 6379,
}  # fmt: skip

TLS = {"amqps", "grpcs", "https", "mqtts", "rediss", "rediss+stream", "valkeys"}
"""Schemes that begin with a TLS handshake."""

AUTHORITY_FILES = ("ca", "ca_file", "ssl_ca_certs")
"""The options that name a file of trusted certificates, depending on the scheme."""


@dataclass(frozen=True)
class Address:
    """Something that can be connected to."""

    host: str
    port: int
    tls: bool = False
    trusted: str | None = None
    """A file of trusted certificates; None: those of the system."""
    verified: bool = True
    """Whether the server's certificate is checked."""
    public: bool = False
    """Whether its publisher connects only to the public internet."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(destination: Destination, broker_url: str | None) -> Sequence[Address]:
    """The addresses of a destination; to reach one of them is enough. Empty if its URL names no host and port. Raises
    `ValueError` if the URL can't be read."""
    url, scheme = destination.url, destination.scheme
    if scheme == "celery":
        brokers = destination.option("broker") or joined(broker_url)
        return [address for broker in brokers.split(";") if "://" in broker for address in _of_url(broker)]
    if scheme == "azurestoragequeues":
        # The key before the @ may contain any character.
        found = re.search(r"@(https?://[^/?]+)", url)
        return _of_url(found[1]) if found else []
    if scheme in ("sqs", "sns"):
        return _amazon(urlsplit(url), destination.option("endpoint"))
    if scheme == "pubsub":
        return _google(destination)
    if scheme == "azureservicebus":
        return _service_bus(destination)
    if scheme in ("http", "https"):
        public = destination.option("outbox_private") != "allow"
        return [replace(one, public=public) for one in _of_url(url)]
    return _of_url(url)


def _of_url(url: str) -> list[Address]:
    scheme = url.partition("://")[0]
    parts = split(url)
    options = dict(options_of(url))
    hosts = parts.netloc.rpartition("@")[2]
    found = []
    for host in hosts.split(","):
        one = urlsplit(f"//{host}")
        port = one.port or PORTS.get(scheme)
        if one.hostname and port:
            found.append(Address(one.hostname, port))
    if scheme in TLS or (scheme == "kafka" and options.get("tls") == "true"):
        trusted = next((options[name] for name in AUTHORITY_FILES if name in options), None)
        verified = options.get("ssl_cert_reqs", "required").removeprefix("CERT_").lower() == "required"
        return [replace(one, tls=True, trusted=trusted, verified=verified) for one in found]
    return found


def _amazon(parts: SplitResult, endpoint: str | None) -> list[Address]:
    if endpoint:
        return _of_url(endpoint)
    suffix = "amazonaws.com.cn" if (parts.hostname or "").startswith("cn-") else "amazonaws.com"
    return [Address(f"{parts.scheme}.{parts.hostname}.{suffix}", 443, tls=True)]


def _google(destination: Destination) -> list[Address]:
    emulator = destination.option("emulator") or os.environ.get("PUBSUB_EMULATOR_HOST")
    place = urlsplit(f"//{emulator or destination.option('endpoint') or 'pubsub.googleapis.com'}")
    return [Address(place.hostname or "", place.port or 443, tls=not emulator)]


def _service_bus(destination: Destination) -> list[Address]:
    parts = urlsplit(destination.url)
    tls = destination.option("development_emulator") != "true"
    return [Address(parts.hostname or "", parts.port or (5671 if tls else 5672), tls, destination.option("ca_file"))]
