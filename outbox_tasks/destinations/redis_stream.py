"""Redis Streams: `redis+stream://host:port/db/stream`, one XADD a message, pipelined.

Redis Streams have no CloudEvents binding: docs/destinations.md says what the fields are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
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


class RedisStreamPublisher:
    """Appends to one stream. Sent means that Redis has answered with the entry's id."""

    green = True

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        parts = urlsplit(destination.url)
        database, stream = _path(destination, parts.path)
        self.stream = stream or destination.name
        maxlen = options.read(destination, OPTIONS).get("maxlen")
        trim = ["MAXLEN", "~", str(maxlen)] if maxlen else []
        command = ["XADD", self.stream, *trim, "*"]
        self._length, self._head = len(command), b"".join(map(_bulk, command))
        self._connection = redis.ConnectionPool.from_url(
            urlunsplit((parts.scheme.partition("+")[0], parts.netloc, f"/{database}", "", "")),
            socket_connect_timeout=min(5.0, settings.send_timeout / 2),
            socket_timeout=settings.send_timeout / 2,
            socket_keepalive=True,
            health_check_interval=5,
            # Redis may have run an XADD whose answer was lost. So the relay decides about retries, and records them.
            retry=Retry(NoBackoff(), 0),
        ).make_connection()
        self._answered = False
        """Whether the last commands on this connection have all been answered."""

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """All commands in one write, and not in a transaction: each message has an outcome of its own."""
        commands, unsendable = encoded(messages, self._command)
        try:
            answers = iter(self._answers(list(commands.values())) if commands else [])
        except RedisError as error:
            failed = _outcome(error)
            return [unsendable.get(place, failed) for place in range(len(messages))]
        return [unsendable.get(place) or _outcome(next(answers)) for place in range(len(messages))]

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _answers(self, commands: Sequence[bytes]) -> list[object]:
        """Redis's answer to each command. On a connection of our own: redis-py's pipeline takes four times as much CPU
        for a message, most of it to pack the command."""
        connection = self._connection
        if self._answered:
            _close_unless_idle(connection)
        self._answered = False
        try:
            connection.send_packed_command([b"".join(commands)])
            answers = [_answer(connection) for _ in commands]
        except BaseException:  # a time limit too: the next message must not be given the rest of these answers
            connection.disconnect()
            raise
        self._answered = True
        return answers

    def _command(self, message: LeasedMessage) -> bytes:
        """XADD as Redis reads it. https://redis.io/docs/latest/develop/reference/protocol-spec/"""
        fields = [_ce_name(name) + _bulk(value) for name, value in attributes(message, self._source).items()]
        if message.headers != {}:
            fields += [_bulk(f"h_{name}") + _bulk(value) for name, value in own_headers(message).items()]
        payload = b"$%d\r\n%b\r\n" % (len(message.payload), message.payload)
        fields += [CONTENT_TYPE + _bulk(message.content_type), DATA + payload]
        return b"*%d\r\n%b%b" % (self._length + 2 * len(fields), self._head, b"".join(fields))


def _bulk(text: str) -> bytes:
    """A text of a command, as Redis reads it."""
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


@cache
def _ce_name(attribute: str) -> bytes:
    return _bulk(f"ce_{attribute}")


CONTENT_TYPE, DATA = _bulk("content_type"), _bulk("data")


def _close_unless_idle(connection: Any) -> None:
    """Close a connection that Redis has closed, or on which it has said something that nobody asked for."""
    try:
        if connection.can_read():
            connection.disconnect()
    except (RedisError, OSError):
        connection.disconnect()


def _answer(connection: Any) -> object:
    try:
        return connection.read_response()
    except ResponseError as refusal:
        return refusal


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
