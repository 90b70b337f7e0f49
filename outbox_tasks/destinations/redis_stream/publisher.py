"""Redis Streams: `redis+stream://host:port/db/stream`, one XADD a message, pipelined.

Redis Streams have no CloudEvents binding: docs/destinations.md says what the fields are.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from outbox_tasks.broker.login import RedisLogin
from outbox_tasks.destinations.common import options
from outbox_tasks.destinations.common.redis_answers import outcome_of
from outbox_tasks.errors import PermanentError
from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.cloudevents import attributes, encoded, own_headers

OPTIONS: options.Options = {"maxlen": options.number(1, 10**15 - 1)}

Entry = tuple[int, bytes]
"""The fields of a message: how many texts they are, and the texts as Redis reads them.
https://redis.io/docs/latest/develop/reference/protocol-spec/"""

IN_ORDER = """local sent, at = 0, 1
while at <= #ARGV do
  local last = at + ARGV[at]
  local added = redis.pcall(unpack(ARGV, at + 1, last))
  if type(added) == 'table' then return {sent, added} end
  sent, at = sent + 1, last + 1
end
return {sent}"""
"""A script in Lua. Its arguments are commands, and before each command the number of its texts. It runs the commands
in order, up to the first that Redis refuses. It answers how many were run, and the refusal if there was one."""


MOST_FIELDS = 1_000
"""Lua can hand on no more to a command."""


class RedisStreamPublisher:
    """Appends to one stream. Sent means that Redis has answered with the entry's id."""

    green = True
    asks_password = True
    batch_size = 500
    keeps_order = True

    def __init__(self, destination: Destination, settings: Settings) -> None:
        self._source = settings.source
        self._wait = settings.send_timeout / 2
        """Seconds: the longest wait for an answer."""
        parts = urlsplit(destination.url)
        database, stream = _path(destination, parts.path)
        self.stream = stream or destination.name
        maxlen = options.read(destination, OPTIONS).get("maxlen")
        trim = ["MAXLEN", "~", str(maxlen)] if maxlen else []
        command = ["XADD", self.stream, *trim, "*"]
        self._length, self._head = len(command), b"".join(map(_bulk, command))
        self._script = b"".join(map(_bulk, ("EVAL", IN_ORDER, "1", self.stream)))
        netloc, login = parts.netloc, dict[str, RedisLogin]()
        if destination.password is not None:
            netloc = netloc.rpartition("@")[2]
            login["credential_provider"] = RedisLogin(destination.url, destination.password)
        self._connection = redis.ConnectionPool.from_url(
            urlunsplit((parts.scheme.partition("+")[0], netloc, f"/{database}", "", "")),
            socket_connect_timeout=min(5.0, self._wait),
            socket_timeout=self._wait,
            socket_keepalive=True,
            health_check_interval=5,
            # Redis may have run an XADD whose answer was lost. So the relay decides about retries, and records them.
            retry=Retry(NoBackoff(), 0),
            **login,
            # redis-py before 6 does not check the name unless it is asked to.
            **({"ssl_check_hostname": True} if parts.scheme.startswith("rediss") else {}),
        ).make_connection()
        self._answered = False
        """Whether the last commands on this connection have all been answered. If not, it is not used again: the
        next messages would be given the rest of those answers."""

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """All commands in one write, and not in a transaction: each message has an outcome of its own. If several
        messages have one key, a script appends them."""
        entries, outcomes = encoded(messages, self._entry)
        keys = [message.key for message in messages if message.key is not None]
        try:
            if len(keys) > len(set(keys)):
                outcomes |= self._in_order(messages, entries)
            elif entries:
                answers = self._answers([self._command(entry) for entry in entries.values()])
                outcomes.update(zip(entries, map(_outcome, answers), strict=True))
        except RedisError as error:  # each may have arrived
            outcomes = dict.fromkeys(entries, _outcome(error)) | outcomes
        return [outcomes.get(place) or Outcome.behind() for place in range(len(messages))]

    def _in_order(self, messages: Sequence[LeasedMessage], entries: dict[int, Entry]) -> dict[int, Outcome]:
        """Append entries of which some have one key, up to the first that Redis refuses: it would refuse the others
        too."""
        for place in _behind(messages, entries):
            entries.pop(place, None)
        length = 4 + sum(1 + self._length + texts for texts, _ in entries.values())
        commands = [_bulk(str(self._length + texts)) + self._head + fields for texts, fields in entries.values()]
        [answer] = self._answers([b"*%d\r\n%b%b" % (length, self._script, b"".join(commands))])
        if not isinstance(answer, list):  # scripts are not allowed, for example
            return dict.fromkeys(entries, _outcome(answer))
        count, *refusal = answer
        sent = dict.fromkeys(list(entries)[:count], Outcome.sent())
        refused = dict.fromkeys(entries, _outcome(refusal[0])) if refusal else {}
        return refused | sent | dict.fromkeys(_behind(messages, sent), Outcome.behind())

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _command(self, entry: Entry) -> bytes:
        texts, fields = entry
        return b"*%d\r\n%b%b" % (self._length + texts, self._head, fields)

    def _answers(self, commands: Sequence[bytes]) -> list[object]:
        """Redis's answer to each command. On a connection of our own: redis-py's pipeline takes four times as much CPU
        for a message, most of it to pack the command."""
        connection = self._connection
        if not (self._answered and _is_idle(connection)):
            connection.disconnect()
        self._answered = False  # a time limit may strike anywhere from here on
        connection.send_packed_command([b"".join(commands)])
        answers = [_answer(connection) for _ in commands]
        self._answered = True
        return answers

    def _entry(self, message: LeasedMessage) -> Entry:
        fields = [_ce_name(name) + _bulk(value) for name, value in attributes(message, self._source).items()]
        fields += [_bulk(f"h_{name}") + _bulk(value) for name, value in own_headers(message).items()]
        payload = b"$%d\r\n%b\r\n" % (len(message.payload), message.payload)
        fields += [CONTENT_TYPE + _bulk(message.content_type), DATA + payload]
        if len(fields) > MOST_FIELDS:
            raise PermanentError(f"it has more than {MOST_FIELDS} fields", code="bad_headers")
        return 2 * len(fields), b"".join(fields)


def _behind(messages: Sequence[LeasedMessage], passing: Container[int]) -> list[int]:
    """The places of messages that must not be sent, because an earlier one of their key is not among `passing`."""
    behind, stopped = [], set[str | None]()
    for place, message in enumerate(messages):
        if message.key in stopped:
            behind.append(place)
        elif message.key is not None and place not in passing:
            stopped.add(message.key)
    return behind


def _bulk(text: str) -> bytes:
    """A text of a command, as Redis reads it."""
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


@cache
def _ce_name(attribute: str) -> bytes:
    return _bulk(f"ce_{attribute}")


CONTENT_TYPE, DATA = _bulk("content_type"), _bulk("data")


def _is_idle(connection: Any) -> bool:
    """Whether Redis has neither closed it nor said something that nobody asked for."""
    try:
        return not connection.can_read()
    except (RedisError, OSError):
        return False


def _answer(connection: Any) -> object:
    try:
        return connection.read_response()
    except ResponseError as refusal:
        return refusal


def _outcome(answer: object) -> Outcome:
    return outcome_of(answer) if isinstance(answer, RedisError) else Outcome.sent()


def _path(destination: Destination, path: str) -> tuple[int, str]:
    first, _, rest = path.strip("/").partition("/")
    if re.fullmatch("[0-9]{1,9}", first):
        return int(first), rest
    if rest:
        rule = "the path of a redis+stream:// URL is /db/stream, as in redis+stream://localhost:6379/1/orders"
        raise destination.unusable(rule)
    return 0, first
