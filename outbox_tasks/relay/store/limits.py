"""The limits of each destination that count now: what a person has set, or else the settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isinf
from typing import Literal, NamedTuple

from sqlalchemy import Engine

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.settings import Settings

log = logging.getLogger(__name__)

READ_EVERY_SECONDS = 1.0
"""What people have set is read at most so often."""


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
    """What counts for a destination."""

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


@dataclass(frozen=True, slots=True)
class Known:
    """One answer of the database, as a whole: a thread that still works with an old one adds nothing to the next."""

    changes: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    """What people have set, by destination and setting."""
    made: dict[str, Limit] = field(default_factory=dict)
    """What follows from that, by destination."""


class Limits(Database):
    """Reads what people have set. While that fails, the settings count."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._read_at = float("-inf")
        self._known = Known()

    def of(self, destination: str) -> Limit:
        """The limits of a configured destination; at most `READ_EVERY_SECONDS` old."""
        known = self._read()
        limit = known.made.get(destination)
        if limit is None:
            limit = known.made[destination] = self._make(destination, known.changes.get(destination, {}))
        return limit

    def set_by_people(self) -> list[str]:
        """The configured destinations for which people have set something."""
        return [name for name in self._read().changes if name in self.settings.destinations]

    def _read(self) -> Known:
        now = time.monotonic()
        if now < self._read_at + READ_EVERY_SECONDS:
            return self._known
        self._read_at = now
        changes: dict[str, dict[str, Change]] = {}
        try:
            for name, setting, *change in self.ask("traffic/limits.sql"):
                changes.setdefault(name, {})[setting] = Change(*change)
        except DatabaseUnavailable as error:
            log.warning("the limits that people have set were not read, so the settings count: %s", error)
        if changes != self._known.changes:
            self._known = Known(changes)
        return self._known

    def _make(self, destination: str, changes: Mapping[str, Change]) -> Limit:
        own = self.settings.destinations[destination]
        rate, most, singles = own.rate_limit, own.concurrency, self.settings.singles_of(destination)
        if change := changes.get("rate_limit"):
            rate = change.value
        if change := changes.get("concurrency"):
            most = int(change.value)
        if change := changes.get("singles"):
            singles = "all" if isinf(change.value) else int(change.value)
        return Limit(rate, most, singles if most is None else 0, changes)
