"""Redis Streams: `redis+stream://host:port/db/stream`, one XADD a message, pipelined.

Redis Streams have no CloudEvents binding: docs/destinations.md says what the fields are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from outbox_tasks.destinations import options
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

OPTIONS: options.Options = {"maxlen": options.number(1, 10**15 - 1)}
Fields = dict[str, str | bytes]


class RedisStreamPublisher:
    """Appends to one stream. Sent means that Redis has answered with the entry's id."""

    green = True

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        parts = urlsplit(destination.url)
        database, stream = _path(destination, parts.path)
        self.stream = stream or destination.name
        maxlen = options.read(destination, OPTIONS).get("maxlen")
        self._trim = ("MAXLEN", "~", maxlen) if maxlen else ()
        self._client = redis.Redis.from_url(
            urlunsplit((parts.scheme.partition("+")[0], parts.netloc, f"/{database}", "", "")),
            socket_connect_timeout=min(5.0, settings.send_timeout / 2),
            socket_timeout=settings.send_timeout / 2,
            socket_keepalive=True,
            health_check_interval=5,
            # Redis may have run an XADD whose answer was lost. So the relay decides about retries, and records them.
            retry=Retry(NoBackoff(), 0),
        )
        _widen(self._client.connection_pool)

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One pipeline for all, not a transaction: each message has an outcome of its own."""
        entries, unsendable = encoded(messages, self._fields)
        pipeline = self._client.pipeline(transaction=False)
        for entry in entries.values():
            pipeline.execute_command(  # type: ignore[no-untyped-call]
                "XADD", self.stream, *self._trim, "*", *chain.from_iterable(entry.items())
            )
        try:
            answers = iter(pipeline.execute(raise_on_error=False) if len(pipeline) else [])
        except RedisError as error:
            failed = _outcome(error)
            return [unsendable.get(place, failed) for place in range(len(messages))]
        return [unsendable.get(place) or _outcome(next(answers)) for place in range(len(messages))]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _fields(self, message: LeasedMessage) -> Fields:
        fields: Fields = {f"ce_{name}": value for name, value in attributes(message, self._source).items()}
        if message.headers != {}:
            own = own_headers(message)
            "".join((*own, *own.values())).encode()  # fails here for this message, not for all
            fields |= {f"h_{name}": value for name, value in own.items()}
        fields["content_type"] = message.content_type
        fields["data"] = message.payload
        return fields


def _widen(pool: redis.ConnectionPool) -> None:
    """Let a pipeline leave in writes of 64 KiB. redis-py cuts it every 6,000 bytes, and each write is a system call."""

    class WideConnection(pool.connection_class):  # type: ignore[misc,name-defined]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._buffer_cutoff = 1 << 16

    pool.connection_class = WideConnection


NAMED = {
    redis.exceptions.OutOfMemoryError: "oom",
    redis.exceptions.ReadOnlyError: "readonly",
    redis.exceptions.BusyLoadingError: "loading",
}
"""redis-py removes the names of these refusals from the text."""

OUT_OF_ORDER = {"busy", "clusterdown", "loading", "masterdown", "misconf", "noreplicas", "oom", "readonly"}
"""Redis would refuse any other message too."""


def _outcome(answer: object) -> Outcome:
    """What an answer means. No refusal is the message's fault, not even if the key is no stream."""
    if not isinstance(answer, RedisError):
        return Outcome.sent()
    text = str(answer)
    if isinstance(answer, AuthenticationError | NoPermissionError):
        return Outcome.outage("unauthorized", text)
    for kind, name in NAMED.items():
        if isinstance(answer, kind):
            return Outcome.outage(name, text)
    if isinstance(answer, ResponseError):
        code = text.partition(" ")[0].lower()
        if code == "wrongtype":
            return Outcome.outage("wrong_type", text)
        code = code if code.isalpha() else "refused"
        return Outcome.outage(code, text) if code in OUT_OF_ORDER else Outcome.retry(code, text)
    if isinstance(answer, redis.exceptions.TimeoutError):
        return Outcome.outage("timeout", text)
    return Outcome.outage("connection", text)


def _path(destination: Destination, path: str) -> tuple[int, str]:
    first, _, rest = path.strip("/").partition("/")
    if re.fullmatch("[0-9]{1,9}", first):
        return int(first), rest
    if rest:
        rule = "the path of a redis+stream:// URL is /db/stream, as in redis+stream://localhost:6379/1/orders"
        raise destination.unusable(rule)
    return 0, first
