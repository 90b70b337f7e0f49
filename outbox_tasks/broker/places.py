"""The URLs of brokers: several as one text, and whether two lead to the same place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

SCHEME_KINDS = {
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), "amqp"),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), "redis"),
}
"""Schemes of one kind differ only in how the client connects."""

DEFAULT_PORTS = {"amqp": "5672", "redis": "6379", "sentinel": "26379"}


def joined(broker_url: str | Sequence[str] | None) -> str:
    """One text for the broker URLs in Celery's configuration, which may be one, several or none. kombu takes it too."""
    return broker_url if isinstance(broker_url, str) else ";".join(broker_url or ())


@lru_cache(64)
def same_place(one: str, other: str) -> bool:
    """Whether two broker URLs lead to the same place, whoever logs in there. Each may be several, with `;` between:
    then one place in common is enough."""
    return one == other or not _places(one).isdisjoint(_places(other))


def _places(broker_url: str) -> set[tuple[str, ...]]:
    return {_place(urlsplit(url)) for url in broker_url.split(";")}


def _place(parts: SplitResult) -> tuple[str, ...]:
    kind = SCHEME_KINDS.get(parts.scheme, parts.scheme)
    address = parts.netloc.rpartition("@")[2].lower()
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        host, port = address, DEFAULT_PORTS.get(kind, "")
    # kombu decodes what follows the first slash. RabbitMQ's virtual host "shop" is not "/shop".
    path = unquote(parts.path[1:])
    return kind, host, port, (path or "/") if kind == "amqp" else (path.strip("/") or "0")
