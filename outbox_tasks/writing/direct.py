"""Direct dispatch: a writer leases what it inserts, and sends the publish task itself after the commit.

That spares the claim, and so most of the time from the commit to the send. Nothing else changes: a worker begins the
message only under this lease. If the writer dies, or its task gets lost, the lease runs out and the claim finds the
message. `docs/model.md` shows that this is safe for messages without a key, and only for them.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from outbox_tasks.model import Bundle, Ticket
from outbox_tasks.settings import Settings
from outbox_tasks.writing.rows import Row

LEASE = 10.0
"""Seconds of a writer's lease, from the insert on."""

RATE, BURST = 500.0, 50.0
"""Messages a second, and at once, that one process sends this way. More of them go by the claim, in full bundles."""

MOST, MOST_BYTES = 10, 100_000
"""Messages, and characters of their payloads, that one call sends this way."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Leased messages of one write, for the broker once they are committed."""

    bundles: Sequence[Bundle]
    until: float
    """When the lease is about to run out, by `time.monotonic`."""
    nudge: bool
    """The same write has messages that go by the claim."""


class Grants:
    """How much this process may send by itself.

    It has no lock, which would not survive a fork. Two threads can take one too many, which does no harm.
    """

    def __init__(self) -> None:
        self._level, self._filled = BURST, time.monotonic()
        self.paused = False
        """Older messages wait: in a long publish queue, or in the table."""
        self._reached_by: int | None = None

    @property
    def stopped(self) -> bool:
        """This process has not yet reached the broker, or the broker does not answer. Only a claim may lease then: a
        program that ends soon might not send what it leased."""
        return self._reached_by != os.getpid()

    def note(self, *, answers: bool) -> None:
        """Whether the broker has answered this process."""
        self._reached_by = os.getpid() if answers else None

    def take(self, count: int) -> bool:
        """Whether so many messages may be sent now; if not, they are to go by the claim."""
        now = time.monotonic()
        if self.stopped or self.paused:
            return False
        level = min(BURST, self._level + (now - self._filled) * RATE)
        self._filled, self._level = now, level
        if level < count:
            return False
        self._level = level - count
        return True


class Waker(Protocol):
    """What a writer calls after a commit."""

    @property
    def grants(self) -> Grants | None:
        """None: all messages go by the claim."""

    def __call__(self, after: Callable[[], bool] | None = None, dispatch: Dispatch | None = None) -> object: ...


def lease(settings: Settings, grants: Grants | None, made: Sequence[Row]) -> Dispatch | None:
    """Lease those of these rows that may be sent directly, and say how; None: all go by the claim."""
    if grants is None or len(made) > MOST:
        return None
    direct = [row for row in made if _may_go_directly(settings, row)]
    if not direct or sum(map(_size, direct)) > MOST_BYTES or not grants.take(len(direct)):
        return None
    until = time.monotonic() + LEASE - 1.0
    return Dispatch(tuple(_leased(direct, settings)), until, nudge=len(direct) < len(made))


def _size(row: Row) -> int:
    return len(row["text"] if "text" in row else row["data"])


def _may_go_directly(settings: Settings, row: Row) -> bool:
    """Without a key, due now, and to a destination that anybody may send to at any time."""
    if not row.keys().isdisjoint(("key", "deliver_at", "delay")) or row.get("priority") == "low":
        return False
    destination = settings.destinations[row["destination"]]
    return destination.rate_limit is None and destination.concurrency is None


def _leased(rows: Iterable[Row], settings: Settings) -> Iterable[Bundle]:
    """Lease the rows in as few bundles as can be. A bundle has a lease of its own."""
    together: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        together[row["destination"]].append(row)
    for destination, alike in together.items():
        size = settings.bundle_size_of(destination)
        for some in (alike[n : n + size] for n in range(0, len(alike), size)):
            token = str(uuid4())
            for row in some:
                row["lease"], row["delay"] = token, LEASE
            yield Bundle(destination, token, tuple(Ticket(row["id"], 0, row["event_type"]) for row in some))
