"""Redis Streams: `redis+stream://host:port/db/stream`, one XADD a message, pipelined.

Redis Streams have no CloudEvents binding: docs/destinations.md says what the fields are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from outbox_tasks.destinations import options
from outbox_tasks.model import LeasedMessage, Outcome, Result
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

OPTIONS: options.Options = {"maxlen": options.number(1, 10**15 - 1)}

Entry = tuple[int, bytes]
"""How many texts the fields of a message are, and the texts as Redis reads them.
https://redis.io/docs/latest/develop/reference/protocol-spec/"""

IN_ORDER = """local sent, at = 0, 2
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local added
  if ARGV[1] == '' then
    added = redis.pcall('XADD', KEYS[1], '*', unpack(ARGV, at + 1, last))
  else
    added = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, at + 1, last))
  end
  if type(added) == 'table' and added.err then return {sent, added} end
  sent, at = sent + 1, last + 1
end
return {sent}"""
"""Appends entries, each as the number of its texts and then these, and stops at the first that Redis refuses. Answers
how many there are, and the refusal."""

MOST_TEXTS = 2_000
"""In an entry of a script: Lua can hand on only so many at once."""


class RedisStreamPublisher:
    """Appends to one stream. Sent means that Redis has answered with the entry's id."""

    green = True
    keeps_order = True

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        parts = urlsplit(destination.url)
        database, stream = _path(destination, parts.path)
        self.stream = stream or destination.name
        maxlen = options.read(destination, OPTIONS).get("maxlen")
        trim = ["MAXLEN", "~", str(maxlen)] if maxlen else []
        command = ["XADD", self.stream, *trim, "*"]
        self._length, self._head = len(command), b"".join(map(_bulk, command))
        self._script = [*map(_bulk, ("EVAL", IN_ORDER, "1", self.stream)), _bulk(str(maxlen or ""))]
        self._connection = redis.ConnectionPool.from_url(
            urlunsplit((parts.scheme.partition("+")[0], parts.netloc, f"/{database}", "", "")),
            socket_connect_timeout=min(5.0, settings.send_timeout / 2),
            socket_timeout=settings.send_timeout / 2,
            socket_keepalive=True,
            health_check_interval=5,
            # Redis may have run an XADD whose answer was lost. So the relay decides about retries, and records them.
            retry=Retry(NoBackoff(), 0),
            # redis-py before 6 does not check the name unless it is asked to.
            **({"ssl_check_hostname": True} if parts.scheme.startswith("rediss") else {}),
        ).make_connection()
        self._answered = False
        """Whether the last commands on this connection have all been answered."""

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """All commands in one write, and not in a transaction: each message has an outcome of its own."""
        entries, unsendable = encoded(messages, self._entry)
        keys = [message.key for message in messages if message.key is not None]
        if len(keys) > len(set(keys)):
            return self._in_order(messages, entries, unsendable)
        return self._each(len(messages), entries, unsendable)

    def _each(self, count: int, entries: Mapping[int, Entry], outcomes: Mapping[int, Outcome]) -> list[Outcome]:
        """Send the entries, each for itself. Those without an entry have their outcome."""
        commands = [b"*%d\r\n%b%b" % (self._length + texts, self._head, fields) for texts, fields in entries.values()]
        try:
            answers = iter(self._answers(commands) if commands else [])
        except RedisError as error:
            failed = _outcome(error)
            return [outcomes.get(place, failed) for place in range(count)]
        return [outcomes.get(place) or _outcome(next(answers)) for place in range(count)]

    def _in_order(
        self, messages: Sequence[LeasedMessage], entries: Mapping[int, Entry], outcomes: dict[int, Outcome]
    ) -> list[Outcome]:
        """Let Redis append several messages of a key by a script, which stops at the first refusal."""
        scripted = self.keeps_order and all(texts <= MOST_TEXTS for texts, _ in entries.values())
        entries = _sendable(messages, entries, outcomes, runs=scripted)
        if not scripted or not entries:
            return self._each(len(messages), entries, outcomes)
        arguments = [_bulk(str(texts)) + fields for texts, fields in entries.values()]
        length = len(self._script) + sum(texts + 1 for texts, _ in entries.values())
        try:
            [answer] = self._answers([b"*%d\r\n%b" % (length, b"".join((*self._script, *arguments)))])
        except RedisError as error:  # it may have run
            failed = _outcome(error)
            return [outcomes.get(place, failed) for place in range(len(messages))]
        if isinstance(answer, RedisError):
            failed = _outcome(answer)
            if failed.result is not Result.OUTAGE or isinstance(answer, NoPermissionError):
                # Scripts are not allowed here, or not known.
                self.keeps_order = False
                return self._in_order(messages, entries, outcomes)
            answer = [0, answer]
        assert isinstance(answer, list)
        sent, *refused = answer
        found = [Outcome.sent()] * sent + [_outcome(error) for error in refused]
        outcomes.update(zip(entries, found, strict=False))
        return [outcomes.get(place) or Outcome.behind() for place in range(len(messages))]

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

    def _entry(self, message: LeasedMessage) -> Entry:
        fields = [_ce_name(name) + _bulk(value) for name, value in attributes(message, self._source).items()]
        if message.headers != {}:
            fields += [_bulk(f"h_{name}") + _bulk(value) for name, value in own_headers(message).items()]
        payload = b"$%d\r\n%b\r\n" % (len(message.payload), message.payload)
        fields += [CONTENT_TYPE + _bulk(message.content_type), DATA + payload]
        return 2 * len(fields), b"".join(fields)


def _sendable(
    messages: Sequence[LeasedMessage], entries: Mapping[int, Entry], outcomes: dict[int, Outcome], *, runs: bool
) -> dict[int, Entry]:
    """The entries that may be sent. Those behind a message of their key that can't be sent get their outcome; without
    `runs`, those behind any message of their key."""
    sendable: dict[int, Entry] = {}
    stopped: set[str | None] = set()
    for place, message in enumerate(messages):
        if place in entries:
            if message.key in stopped:
                outcomes[place] = Outcome.behind()
            else:
                sendable[place] = entries[place]
        if message.key is not None and not (runs and place in sendable):
            stopped.add(message.key)
    return sendable


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
