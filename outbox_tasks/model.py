"""The values that travel along the pipe: what is written, what is leased, and what became of it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4, uuid5

MAX_EVENT_TYPE = 255
MAX_KEY = 255
MAX_TEXT = 1000
"""Characters of the other texts of a message."""

FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Between these a time can be read in every time zone."""

TASK_HEADER = "celery-message"
"""The header that makes a stored Celery task of a message."""


class TaskHeaders(dict[str, str]):
    """The headers of a stored task. No others may have a `TASK_HEADER`: it names the task, its queue and its body's
    type, and what an application takes from its users may end up in headers."""


Priority = Literal["high", "normal", "low"]

EVENT_ID = "eventid"
"""The header, and the CloudEvents attribute, of messages that are the same event at several destinations."""


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


@dataclass(frozen=True, slots=True)
class LeasedMessage:
    """A stored message in the hands of a publisher. `id` is the UUID as text; `payload` is exactly what was stored."""

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
    latest: bool = False
    age: float = 0.0
    """Seconds for which it had been due as its send was begun, by the database's clock."""
    dataref: str | None = None
    """Where the payload is, if it was too large to travel along: then `payload` is empty."""


class Ticket(NamedTuple):
    """One message of a bundle, as it travels through the broker: no payload, only what begin compares. Its key, and
    whether only the latest of it matters, are known from the begin on."""

    id: str
    attempt: int
    event_type: str
    key: str | None = None
    latest: bool = False
    age: float = 0.0
    """Seconds for which it had been due as its send was begun."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """1..n leased messages of one destination: what one broker message carries."""

    destination: str
    lease: str
    tickets: tuple[Ticket, ...]
    more: bool = False
    """There was more due than could be claimed: whoever publishes this bundle wakes the claim."""
    gather: bool = False
    """It is single because its destination takes no bundles: a worker may run it together with others like it."""
    lane: int = 0
    """How long it can wait behind others, from 0 to 3: little of a destination goes before much, and of much what has
    a higher priority."""
    sender: UUID = field(default_factory=uuid4, compare=False)
    """Who sends it, where sends to its destination are counted. Not for the broker: each run is one of its own."""


FAILED_TOGETHER, FAILED_ALONE = "failed_together", "failed_alone"
"""Codes of messages that a publisher failed over, and did not say which it was."""

ALONE_AFTER = ("unsettled", FAILED_TOGETHER, FAILED_ALONE)
"""Codes of messages that may be the cause of what became of their last bundle: they travel alone."""


class Result(StrEnum):
    """What a send came to."""

    SENT = "sent"
    RETRY = "retry"
    OUTAGE = "outage"
    DEAD = "dead"
    DISCARDED = "discarded"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message at its destination, as a publisher reports it.

    `code` is short and stable, for policy and grouping; `error` is for people. `retry_after` (seconds)
    is the least wait that the destination asked for.
    """

    result: Result
    code: str | None = None
    error: str | None = None
    retry_after: float | None = None

    @classmethod
    def sent(cls) -> Outcome:
        """The destination confirmed the message."""
        return _SENT

    @classmethod
    def retry(cls, code: str, error: str, *, retry_after: float | None = None) -> Outcome:
        """Not delivered, or not known to be: worth another attempt."""
        return cls(Result.RETRY, code, error, retry_after)

    @classmethod
    def outage(cls, code: str, error: str, *, retry_after: float | None = None) -> Outcome:
        """Not delivered, or not known to be, because the destination itself is out of reach or out of order: it would
        take no other message either. Worth another attempt, like `retry`."""
        return cls(Result.OUTAGE, code, error, retry_after)

    @classmethod
    def unforeseen(cls, error: str, *, together: bool) -> Outcome:
        """The send failed in a way that nobody foresaw, or that does not tell of which message: any of those that were
        sent `together` may be the cause, and may have arrived. From now on each of them travels alone, and only what
        fails then counts. No publisher sends them once more by itself: their rows would not tell why."""
        return cls(Result.RETRY, FAILED_TOGETHER if together else FAILED_ALONE, error)

    @classmethod
    def dead(cls, code: str, error: str) -> Outcome:
        """Can never be delivered as it is."""
        return cls(Result.DEAD, code, error)

    @classmethod
    def discarded(cls, code: str, error: str) -> Outcome:
        """Not to be delivered any more, and nobody's fault: it goes to the archive, unsent."""
        return cls(Result.DISCARDED, code, error)

    @classmethod
    def behind(cls) -> Outcome:
        """Not sent, because an earlier message of its key was not: it waits, and nothing is counted."""
        return _BEHIND


_SENT, _BEHIND = Outcome(Result.SENT), Outcome(Result.BEHIND)


class Step(StrEnum):
    """What happens to a message next, after policy looked at its outcome."""

    SENT = "sent"
    RETRY = "retry"
    """again soon, by Celery's own retry; the lease is kept"""
    RELEASE = "release"
    """again later, through the table; the lease is given back"""
    OUTAGE = "outage"
    """its destination is out of reach: again later, through the table, and the attempt does not count"""
    DEAD = "dead"
    DISCARDED = "discarded"
    """not to be sent any more: archived without"""
    BEHIND = "behind"
    """not sent, because an earlier message of its key was not: its attempt and its lease are given back"""
    STALE = "stale"
    """not ours any more: somebody else holds it, or it is gone"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A message, what happens to it next and, for RETRY, RELEASE and OUTAGE, after how many seconds."""

    ticket: Ticket
    step: Step
    wait: float = 0.0
    code: str | None = None
    error: str | None = None


TIME = 0xFFFFFFFF_FFFF_F000 << 64
"""The bits of an id that are its time, in version 7, and its version."""


def sibling(id: UUID, destination: str) -> UUID:
    """The id of a message's row for another destination than its first one: of the same time and version, so that those
    that tell the time all do."""
    return UUID(int=id.int & TIME | uuid5(id, destination).int & ~TIME)
