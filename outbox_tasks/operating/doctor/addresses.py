"""Where a destination's URL leads: hosts and ports, as far as the scheme has some."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, parse_qs, urlsplit

from outbox_tasks.broker.pinned import joined
from outbox_tasks.settings.destination import Destination, split

PORTS = {
    "amqp": 5672, "amqps": 5671, "http": 80, "https": 443, "kafka": 9092, "mqtt": 1883, "mqtts": 8883, "nats": 4222,
    "pyamqp": 5672, "redis": 6379, "rediss": 6379, "redis+stream": 6379, "rediss+stream": 6379, "sentinel": 26379,
    "valkey": 6379,
}  # fmt: skip

TLS = {"amqps", "grpcs", "https", "mqtts", "rediss", "rediss+stream"}
"""Schemes that begin with a TLS handshake."""

AUTHORITY_FILES = ("ca", "ca_file", "ssl_ca_certs")
"""The options, of one scheme or another, that name the certificates to trust."""


@dataclass(frozen=True)
class Address:
    """Something that can be connected to."""

    host: str
    port: int
    tls: bool = False
    trusted: str | None = None
    """A file with the certificates to trust; none: those of the system."""
    verified: bool = True
    """Whether the server's certificate matters."""
    public: bool = False
    """Whether its publisher connects to nothing but the public internet."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(destination: Destination, broker_url: str | None) -> Sequence[Address]:
    """Those that a destination's URL leads to; one of several is enough. None are known of schemes of other packages
    whose URLs name no host and port. Raises `ValueError` for a URL that can't be read."""
    url, scheme = destination.url, destination.scheme
    if scheme == "celery":
        options = parse_qs(urlsplit(url).query)
        brokers = options.get("broker", [joined(broker_url)])[0]
        return [address for broker in brokers.split(";") if "://" in broker for address in _of_url(broker)]
    if scheme == "azurestoragequeues":
        # The key before it may hold anything.
        found = re.search(r"@(https?://[^/?]+)", url)
        return _of_url(found[1]) if found else []
    if scheme in ("sqs", "sns"):
        return _amazon(urlsplit(url))
    if scheme == "pubsub":
        return _google(urlsplit(url))
    if scheme == "azureservicebus":
        return _service_bus(urlsplit(url))
    if scheme in ("http", "https"):
        public = parse_qs(split(url).query).get("outbox_private") != ["allow"]
        return [replace(one, public=public) for one in _of_url(url)]
    return _of_url(url)


def _of_url(url: str) -> list[Address]:
    scheme = url.partition("://")[0]
    parts = split(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
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


def _amazon(parts: SplitResult) -> list[Address]:
    endpoint = parse_qs(parts.query).get("endpoint")
    if endpoint:
        return _of_url(endpoint[0])
    suffix = "amazonaws.com.cn" if (parts.hostname or "").startswith("cn-") else "amazonaws.com"
    return [Address(f"{parts.scheme}.{parts.hostname}.{suffix}", 443, tls=True)]


def _google(parts: SplitResult) -> list[Address]:
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    emulator = options.get("emulator") or os.environ.get("PUBSUB_EMULATOR_HOST")
    place = urlsplit(f"//{emulator or options.get('endpoint', 'pubsub.googleapis.com')}")
    return [Address(place.hostname or "", place.port or 443, tls=not emulator)]


def _service_bus(parts: SplitResult) -> list[Address]:
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    tls = options.get("development_emulator") != "true"
    return [Address(parts.hostname or "", parts.port or (5671 if tls else 5672), tls, options.get("ca_file"))]
