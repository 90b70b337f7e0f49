"""The days of the outbox: each is a range of numbers, and a partition of its own. See sql/days.sql."""

from __future__ import annotations

import random
import time
from datetime import date, datetime, timedelta
from typing import NamedTuple

from outbox_tasks.database.connection import Database
from outbox_tasks.relay.store import Store

AHEAD = 2
"""Days for which there are partitions before they begin."""

MARGIN = timedelta(hours=1)
"""A day may go so long after its end at the earliest: whoever wrote in it may still have a transaction open."""

TRIES, WAITS = 8, (0.05, 0.25)
"""How often a run tries again while somebody holds a lock, and seconds between two tries, at random: a regular lock
would meet regular tries each time. Then the next run tries."""


class Day(NamedTuple):
    """A day of the outbox."""

    number: int
    date: date
    began_at: datetime
    ended_at: datetime | None
    now: datetime

    @property
    def span(self) -> dict[str, int]:
        """Its numbers: the first, and the first one after it."""
        return {"first": self.number << 32, "until": (self.number + 1) << 32}


def days(database: Database) -> list[Day]:
    """All days, the oldest first."""
    return [Day._make(row) for row in database.ask("keep/days.sql")]


def ended_days(database: Database, older_than: timedelta) -> list[Day]:
    """The days that ended so long ago, the oldest first."""
    least = max(older_than, MARGIN)
    return [day for day in days(database) if day.ended_at is not None and day.now - day.ended_at >= least]


def turn(database: Database) -> int:
    """Make the partitions of the next days, and begin a new day if the last one is over. Returns how many it made."""
    return int(database.ask("keep/turn.sql", ahead=AHEAD)[0].made)


def dropped(store: Store, day: Day) -> bool:
    """Drop a day. False: somebody was in the way each time, or some of it is at work."""
    for _ in range(TRIES):
        if store.ask("keep/drop.sql", day=day.number)[0].dropped:
            return True
        time.sleep(random.uniform(*WAITS))  # noqa: S311 - nothing secret
    return False
