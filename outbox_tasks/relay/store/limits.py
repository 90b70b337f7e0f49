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


class Limits(Database):
    """Reads what people have set. While that fails, the settings count."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._read_at = float("-inf")
        self._changes: dict[str, dict[str, Change]] = {}
        self._made: dict[str, Limit] = {}

    def of(self, destination: str) -> Limit:
        """The limits of a configured destination; at most `READ_EVERY_SECONDS` old."""
        self._read()
        limit = self._made.get(destination)
        if limit is None:
            limit = self._made[destination] = self._make(destination)
        return limit

    def set_by_people(self) -> list[str]:
        """The configured destinations for which people have set something."""
        self._read()
        return [name for name in self._changes if name in self.settings.destinations]

    def _read(self) -> None:
        now = time.monotonic()
        if now < self._read_at + READ_EVERY_SECONDS:
            return
        self._read_at = now
        changes: dict[str, dict[str, Change]] = {}
        try:
            for name, setting, *change in self.ask("traffic/limits.sql"):
                changes.setdefault(name, {})[setting] = Change(*change)
        except DatabaseUnavailable as error:
            log.warning("the limits that people have set were not read, so the settings count: %s", error)
        if changes != self._changes:
            self._changes = changes
            self._made = {}

    def _make(self, destination: str) -> Limit:
        own, changes = self.settings.destinations[destination], self._changes.get(destination, {})
        rate, most, singles = own.rate_limit, own.concurrency, self.settings.singles_of(destination)
        if change := changes.get("rate_limit"):
            rate = change.value
        if change := changes.get("concurrency"):
            most = int(change.value)
        if change := changes.get("singles"):
            singles = "all" if isinf(change.value) else int(change.value)
        return Limit(rate, most, singles if most is None else 0, changes)
