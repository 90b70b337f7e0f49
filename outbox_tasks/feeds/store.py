"""What a bridge keeps in the relay's database. Each method is one short transaction; none is open while a source is
asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.feed_state import FeedState
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.settings.pipe import USUAL_STATEMENT_SECONDS

HOLD = 60.0
"""Seconds that a lease goes on after a copy. A bridge that takes longer loses it, and copies nothing more."""

SLOWEST = 1024 * 1024
"""Characters that are copied in a second, at the least."""

LONGEST_PAUSE = 30.0
"""Seconds between two tries of a source that fails."""

SHOWN = 1_000
"""Feeds that people see."""


class Copy(NamedTuple):
    """A row of a feed, and the messages that it becomes."""

    number: int
    id: str
    messages: list[dict[str, Any]]
    dead: str | None = None
    """Why it becomes a dead letter."""
    code: str = "unreadable"


class Feeds:
    """The leases of feeds, and what was copied."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, feed: str, token: str) -> list[tuple[int, str]] | None:
        """Take the lease. Returns what was copied and perhaps not deleted; None if the lease is not to be had."""
        with self._database.transaction() as run:
            if not run("feeds/take.sql", feed=feed, token=token, holder=holder(), hold=HOLD):
                return None
            return [(row.number, row.id) for row in run("feeds/left.sql", feed=feed)]

    def copy(self, feed: str, token: str, rows: Sequence[Copy], *, clean: bool = True) -> set[int] | None:
        """Write rows that were not copied before. Returns their numbers; None if the lease is lost. `clean`: see
        `end`."""
        row = json.dumps([{"number": one.number, "id": one.id, "messages": one.messages} for one in rows])
        limit = (self._database.settings.statement_timeout or USUAL_STATEMENT_SECONDS) + len(row) / SLOWEST
        with self._database.transaction(limit) as run:
            run("feeds/durable.sql")
            found = run("feeds/copy.sql", feed=feed, token=token, row=row, hold=HOLD, clean=clean)
            if not found:
                return None
            fresh = set(found[0].numbers)
            dead = [one for one in rows if one.dead is not None and one.number in fresh]
            if dead:
                said = [{"id": one.messages[0]["id"], "code": one.code, "error": one.dead} for one in dead]
                run("feeds/bury.sql", message=json.dumps(said), destination=dead[0].messages[0]["destination"])
        return fresh

    def end(
        self,
        feed: str,
        token: str,
        *,
        clean: bool,
        lag: tuple[int, float] | None = None,
        error: str | None = None,
    ) -> None:
        """Give the lease back. `clean`: all that was copied is deleted at the source. After an error nobody takes it
        for some seconds, which grow with each run."""
        waiting, age = lag or (None, None)
        seen = {"waiting": waiting, "age": age, "error": error, "most": LONGEST_PAUSE}
        self._database.ask("feeds/end.sql", feed=feed, token=token, clean=clean, **seen)

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Those that nobody copies now, and whose source did not fail just now."""
        return [row.name for row in self._database.ask("feeds/wanted.sql", names=json.dumps(names))]

    def states(self) -> list[FeedState]:
        """Of `SHOWN` feeds: those in trouble first, then those whose rows wait longest."""
        return [FeedState(*row) for row in self._database.ask("feeds/states.sql", most=SHOWN)]

    def forget(self, age: float, most: int) -> int:
        """Forget batches that were copied so many seconds ago. Returns how many."""
        return int(self._database.ask("feeds/forget.sql", age=age, most=most)[0].count)
