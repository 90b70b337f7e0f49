"""The values that travel along the pipe: messages, singles, outcomes and verdicts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4, uuid5

MAX_EVENT_TYPE_CHARACTERS = 255
MAX_KEY_CHARACTERS = 255
MAX_TEXT_CHARACTERS = 1000
"""The most characters of any other text of a message."""
MAX_HEADER_BYTES = 64 * 1024
"""The most bytes of its headers: see `size_of_headers`."""
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
"""The most bytes of its payload, to any destination. The table has the same limits."""

FIRST_TIME, LAST_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Every time between these can be shown in every time zone."""


def size_of_headers(headers: Mapping[str, str]) -> int:
    """The bytes of headers as JSON, as the table counts them."""
    return len(json.dumps(headers, ensure_ascii=False).encode())


def as_time(seconds: float) -> datetime:
    """The time of so many seconds since 1970. A time that Python can't represent becomes the last one that it can."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


TASK_HEADER = "celery-message"
"""A message with this header is a stored Celery task."""

RUN_HEADER = "outbox"
"""A task with this header is supervised. It says which row its run belongs to, and workers ask that row first."""


def content(payload: bytes, headers: Mapping[str, str]) -> str:
    """A digest of what a task says: its body and its envelope. A copy whose row says something else by now, after a
    retry or an edit, must not run."""
    return sha256(payload + headers.get(TASK_HEADER, "").encode()).hexdigest()[:16]


class TaskHeaders(dict[str, str]):
    """The headers of a stored task. Only these may have a `TASK_HEADER`: it names the task and its queue, and other
    headers may come from an application's users."""


Priority = Literal["high", "normal", "low"]

EVENT_ID = "eventid"
"""The name of a header and of a CloudEvents attribute. They hold the id of an event with several destinations; all its
messages have it."""


def uuid7() -> UUID:
    """A time-ordered UUID, version 7 of RFC 9562: 48 bits of Unix milliseconds, then 74 random bits."""
    value = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish, as the application states it. See `Outbox.publish` for the fields."""

    event_type: str
    payload: Any
    key: str | None = None
    to: str | Sequence[str] | None = None
    headers: Mapping[str, str] | None = None
    deliver_at: datetime | None = None
    delay: float | timedelta | None = None
    id: UUID | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    content_type: str | None = None
    priority: Priority = "normal"


@dataclass(slots=True)  # not frozen: to make one would take a worker four times as long
class LeasedMessage:
    """A message that a publisher sends. `id` is the UUID as text; `payload` is exactly what was stored."""

    id: str
    event_type: str
    destination: str
    key: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    aggregate_type: str | None
    aggregate_id: str | None
    created_at: datetime
    attempts: int
    """How many sends have begun, with this one."""
    latest: bool = False
    age: float = 0.0
    """For how many seconds it had been due when its send began, by the database's clock."""
    dataref: str | None = None
    """Where a payload is stored that is too large to send. Then `payload` is empty."""
    spared: int = 0
    """How many attempts before this one don't count against `max_attempts`: they met an outage."""
    seq: int = 0
    """Its number: the order of the messages that share a key."""
    newer: bool = False
    """It has failed, and a newer message of its key replaces it."""
    size: int = 0
    """Bytes of its payload in the table."""
    unread: bool = False
    """The payload is too large, or the database did not return it in time. Then `payload` is empty."""

    @property
    def spent(self) -> int:
        """How many attempts count against `max_attempts`, with this one."""
        return self.attempts - self.spared


class Single(NamedTuple):
    """A message that travels as a Celery task of its own: what the broker carries of it. No payload, only what begin
    compares."""

    id: str
    event_type: str
    destination: str
    attempts: int
    """How many sends have begun before."""
    token: str
    """Of its lease."""
    more: bool = False
    """More was due than the claim took: the worker that sends this one wakes the claim."""


class Slot(NamedTuple):
    """The right of one drain to work on a destination."""

    destination: str
    token: str
    number: int = 0
    """From 1 on; 0: not known, as its task does not carry it."""


FAILED_TOGETHER, FAILED_ALONE = "failed_together", "failed_alone"
"""Codes of messages whose send failed unexpectedly: several together, or one alone."""

BATCH_BYTES = 4 * 1024 * 1024
"""The payloads of one batch have at most so many bytes, unless it is a single message: one statement fetches them, and
must end in time."""

UNKNOWN_DESTINATION = "unknown_destination"
"""A message to a destination that is not configured."""

TOO_LARGE = "too_large"
"""A message that nobody can send: the destination, or the database, does not manage its size."""


class Result(StrEnum):
    """How a send ended."""

    SENT = "sent"
    HANDED = "handed"
    RETRY = "retry"
    OUTAGE = "outage"
    DEAD = "dead"
    DISCARDED = "discarded"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message at its destination, as a publisher reports it.

    `code` is short and stable, for policy and grouping; `error` is for people. `retry_after` is the least wait, in
    seconds, that the destination asked for; `within` is for `handed`.
    """

    result: Result
    code: str | None = None
    error: str | None = None
    retry_after: float | None = None
    within: float = 0.0

    def __post_init__(self) -> None:
        """Raises `TypeError` inside the publisher: its messages are tried again, and their error says why."""
        texts: list[object] = [self.code, self.error]
        seconds: object = self.retry_after
        if not all(isinstance(text, str | None) for text in texts) or not isinstance(seconds, float | int | None):
            raise TypeError(f"code and error of an outcome are text, and retry_after is a number of seconds: {self}")

    @classmethod
    def sent(cls) -> Outcome:
        """The destination confirmed the message."""
        return _SENT

    @classmethod
    def handed(cls, within: float) -> Outcome:
        """The tasks' broker has the task. Its row stays until the task has run, and is sent again if no worker begins
        it `within` so many seconds."""
        return cls(Result.HANDED, within=within)

    @classmethod
    def retry(cls, code: str, error: str, *, retry_after: float | None = None) -> Outcome:
        """Not delivered, or nobody knows: try again."""
        return cls(Result.RETRY, code, error, retry_after)

    @classmethod
    def outage(cls, code: str, error: str, *, retry_after: float | None = None) -> Outcome:
        """Not delivered, or nobody knows, because the destination itself is out of reach or out of order: it would take
        no other message either. Try again, like `retry`."""
        return cls(Result.OUTAGE, code, error, retry_after)

    @classmethod
    def unforeseen(cls, error: str, *, together: bool) -> Outcome:
        """The send failed unexpectedly, or nobody knows which message made it fail. Each message that was sent
        `together` with others may be the cause, and may have arrived. From now on each travels alone, and only then a
        failure counts. A publisher must not send them again itself, because their rows would not say why."""
        return cls(Result.RETRY, FAILED_TOGETHER if together else FAILED_ALONE, error)

    @classmethod
    def dead(cls, code: str, error: str) -> Outcome:
        """It can never be delivered as it is."""
        return cls(Result.DEAD, code, error)

    @classmethod
    def discarded(cls, code: str, error: str) -> Outcome:
        """Nobody wants it any more: it goes to the archive, unsent."""
        return cls(Result.DISCARDED, code, error)

    @classmethod
    def behind(cls) -> Outcome:
        """Not sent, because an earlier message of its key was not, or because there was no time left. It loses no
        attempt."""
        return _BEHIND


_SENT, _BEHIND = Outcome(Result.SENT), Outcome(Result.BEHIND)


class Step(StrEnum):
    """What happens to a message after its outcome was judged."""

    SENT = "sent"
    HANDED = "handed"
    """The tasks' broker has the task, and its row waits for its end."""
    RETRY = "retry"
    """Again soon, by Celery's own retry. The message keeps a lease."""
    LATER = "later"
    """Again later, through the table, without a lease."""
    OUTAGE = "outage"
    """Its destination is out of reach: again later, through the table, and the attempt is spared."""
    DEAD = "dead"
    DISCARDED = "discarded"
    """Archived without being sent."""
    BEHIND = "behind"
    """Not sent, because an earlier message of its key was not, or because there was no time left. It loses its lease,
    and no attempt."""
    STALE = "stale"
    """Not ours any more: somebody else holds it, or it is gone."""


@dataclass(slots=True)  # not frozen, as LeasedMessage
class Verdict:
    """What happens to a message next. `wait`: after how many seconds, for RETRY, LATER and OUTAGE; for HANDED within
    how many seconds the task must begin."""

    message: LeasedMessage
    step: Step
    wait: float = 0.0
    code: str | None = None
    error: str | None = None
    token: str | None = None
    """Of the lease with which a RETRY goes on: a new one."""
    sent: bool = True
    """Whether its send was tried."""

    def __post_init__(self) -> None:
        if self.step is Step.RETRY:
            self.token = str(uuid4())


TIME_BITS = 0xFFFFFFFF_FFFF_F000 << 64
"""The bits of a version 7 id that hold its time and its version."""


def sibling(id: UUID, destination: str) -> UUID:
    """The id of a message's row for another destination than its first one. It has the same time and version."""
    return UUID(int=id.int & TIME_BITS | uuid5(id, destination).int & ~TIME_BITS)
