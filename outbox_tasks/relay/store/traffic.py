"""What claims and drains ask about destinations: which ones get nothing now, and how much of the cluster each may
take."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf, isinf
from typing import Any, Literal, NamedTuple

from sqlalchemy import Engine

from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.database.connection import Database
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable

log = logging.getLogger(__name__)

LIMITS_READ_SECONDS = 1.0
"""What people have set is read at most so often."""

PROCESSES_COUNTED_SECONDS = 5.0
"""The processes that send are counted at most so often."""


class Change(NamedTuple):
    """What a person has set in the place of a setting."""

    value: float
    """Infinity: all."""
    who: str
    why: str | None
    since: datetime
    until: datetime | None
    """None: until somebody clears it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What counts for a destination: what a person has set, or else the settings."""

    rate_limit: float | None
    concurrency: int | None
    singles: int | Literal["all"]
    """How many due messages travel as Celery tasks of their own. With a `concurrency` none do: only the slots of drains
    are counted for the whole cluster, also while several claims run."""
    changes: Mapping[str, Change] = field(default_factory=dict)
    """What people have set, by setting."""

    @property
    def is_limited(self) -> bool:
        """Whether it has a rate or a concurrency. Only the claim looks at these."""
        return self.rate_limit is not None or self.concurrency is not None


class Limits(Database):
    """Reads what people have set. While that fails, the settings count."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._read_at = -inf
        self._known: Mapping[str, Mapping[str, Change]] = {}

    def of(self, destination: str) -> Limit:
        """The limits of a configured destination."""
        own, changes = self.settings.destinations[destination], self._read().get(destination, {})
        rate, most, singles = own.rate_limit, own.concurrency, self.settings.singles_of(destination)
        if change := changes.get("rate_limit"):
            rate = change.value
        if change := changes.get("concurrency"):
            most = int(change.value)
        if change := changes.get("singles"):
            singles = "all" if isinf(change.value) else int(change.value)
        return Limit(rate, most, singles if most is None else 0, changes)

    def set_by_people(self) -> list[str]:
        """The configured destinations for which people have set something."""
        return [name for name in self._read() if name in self.settings.destinations]

    def _read(self) -> Mapping[str, Mapping[str, Change]]:
        """What people have set, by destination and setting."""
        now = time.monotonic()
        if now < self._read_at + LIMITS_READ_SECONDS:
            return self._known
        self._read_at = now
        changes: dict[str, dict[str, Change]] = {}
        try:
            for name, setting, *change in self.ask("traffic/limits.sql"):
                changes.setdefault(name, {})[setting] = Change(*change)
        except DatabaseUnavailable as error:
            log.warning("the limits that people have set were not read, so the settings count: %s", error)
        self._known = changes
        return changes


class Traffic(Database):
    """The statements about destinations."""

    def __init__(self, engine: Engine, settings: Settings, limits: Limits) -> None:
        super().__init__(engine, settings)
        self._limits = limits
        self._counted_at, self._processes = -inf, 0

    def slots(self, destination: str) -> int:
        """How many drains of a destination, or slow sends to it, may be at work at once. A destination without a
        `concurrency` of its own leaves one process to the others."""
        own = self._limits.of(destination).concurrency
        if own is not None:
            return own
        others = len(self.settings.destinations) > 1
        return max(1, self._count_processes() - others)

    def _count_processes(self) -> int:
        now = time.monotonic()
        if now >= self._counted_at + PROCESSES_COUNTED_SECONDS:
            self._processes = int(self.ask("traffic/processes.sql", late=LATE_SECONDS)[0].count)
            self._counted_at = now
        return self._processes

    def grant(self, destination: str, most: int) -> int:
        """How many of `most` messages may be taken now: those that the destination's rate allows. Return those that are
        not taken."""
        rate = self._limits.of(destination).rate_limit
        if rate is None or not most:
            return most
        rows = self._ask_of_row("traffic/grant.sql", destination, rate=rate, most=most)
        return int(rows[0].granted)

    def return_unused(self, destination: str, count: int) -> None:
        """Return messages that were granted and not taken."""
        if count > 0 and self._limits.of(destination).rate_limit is not None:
            self.ask("traffic/return_unused.sql", destination=destination, count=count)

    def outstanding(self) -> dict[str, tuple[int, int]]:
        """Of each destination, how many singles and batches are on their way, and of how many the send is slow."""
        # A send that takes a quarter of a second is slow.
        rows = self.ask("traffic/outstanding.sql", slow_seconds=0.25, hold=self.settings.queue_lease)
        return {row.destination: (row.leases, row.slow) for row in rows}

    def probe(self, tokens: dict[str, str]) -> set[str]:
        """Let a message with this token try whether its destination answers. Returns the destinations that may be
        tried."""
        wanted = [{"destination": name, "token": token} for name, token in sorted(tokens.items())]
        rows = self.ask("traffic/probe.sql", probe=json.dumps(wanted), hold=self.settings.queue_lease)
        return {row.name for row in rows}

    def untried(self, destination: str, token: str) -> None:
        """No message was there to try."""
        self.ask("traffic/untried.sql", destination=destination, token=token)

    def tripped(self, destination: str, lease: str, code: str | None, error: str | None) -> bool:
        """Count a send that found the destination out of reach. Returns whether the circuit is open now."""
        rows = self._ask_of_row(
            "traffic/tripped.sql",
            destination,
            token=lease,
            code=storable(code),
            error=storable(error),
            enough=self.settings.breaker_failures,
            pause=self.settings.breaker_pause,
            longest=self.settings.breaker_pause_max,
        )
        return bool(rows[0].open)

    def _ask_of_row(self, verb: str, destination: str, **parameters: Any) -> Any:
        """What a verb says that changes the row of a destination. If the destination has no row yet, it gets one."""
        if rows := self.ask(verb, destination=destination, **parameters):
            return rows
        self.ask("traffic/add.sql", destination=destination)
        return self.ask(verb, destination=destination, **parameters)

    def recovered(self, destination: str) -> None:
        """Close the circuit: the destination has answered."""
        self.ask("traffic/recovered.sql", destination=destination)

    def states(self) -> list[Any]:
        """The destinations that were in trouble or paused: see traffic/states.sql."""
        return list(self.ask("traffic/states.sql"))
