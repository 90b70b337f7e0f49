"""What a bridge keeps in the relay's database. Each method is one short transaction. No transaction is open while a
source is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.overview import FeedState
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.settings.pipe import USUAL_STATEMENT_SECONDS

LEASE_SECONDS = 60.0
"""A lease lasts so long after each copy. A bridge that takes longer loses it, and copies nothing more."""

PAUSE_SECONDS_AT_MOST = 30.0
"""The longest pause between two tries of a source that fails."""

FEEDS_SHOWN = 1_000
"""People see so many feeds."""


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
        """Take the lease. Returns the rows that were copied and perhaps not deleted, as number and id; None: another
        bridge has the lease, or the source failed just now."""
        with self._database.transaction() as run:
            if not run("feeds/take.sql", feed=feed, token=token, holder=holder(), hold=LEASE_SECONDS):
                return None
            return [(row.number, row.id) for row in run("feeds/left.sql", feed=feed)]

    def copy(self, feed: str, token: str, rows: Sequence[Copy]) -> set[int] | None:
        """Write rows that were not copied before. Returns their numbers; None if the lease is lost."""
        row = json.dumps([{"number": each.number, "id": each.id, "messages": each.messages} for each in rows])
        # the database copies at least so many characters in a second
        limit = (self._database.settings.statement_timeout or USUAL_STATEMENT_SECONDS) + len(row) / 2**20
        with self._database.transaction(limit) as run:
            run("feeds/durable.sql")
            answer = run("feeds/copy.sql", feed=feed, token=token, row=row, hold=LEASE_SECONDS)
            if not answer:
                return None
            copied = set(answer[0].numbers)
            dead = [each for each in rows if each.dead is not None and each.number in copied]
            if dead:
                letters = [{"id": each.messages[0]["id"], "code": each.code, "error": each.dead} for each in dead]
                run("feeds/bury.sql", message=json.dumps(letters), destination=dead[0].messages[0]["destination"])
        return copied

    def deleted(self, feed: str, token: str) -> None:
        """Note that all that was copied is deleted at the source."""
        self._database.ask("feeds/deleted.sql", feed=feed, token=token)

    def end(self, feed: str, token: str, *, lag: tuple[int, float] | None = None, error: str | None = None) -> None:
        """Give the lease back. After an error nobody takes it for some seconds, which grow with each run."""
        waiting, age = lag or (None, None)
        seen = {"waiting": waiting, "age": age, "error": error, "most": PAUSE_SECONDS_AT_MOST}
        self._database.ask("feeds/end.sql", feed=feed, token=token, **seen)

    def wanted(self, names: Sequence[str]) -> list[str]:
        """The feeds of these names that no bridge copies now, and whose source did not fail just now."""
        return [row.name for row in self._database.ask("feeds/wanted.sql", names=json.dumps(names))]

    def states(self) -> list[FeedState]:
        """Of `FEEDS_SHOWN` feeds: those in trouble first, then those whose rows wait longest."""
        return [FeedState(*row) for row in self._database.ask("feeds/states.sql", most=FEEDS_SHOWN)]

    def forget(self, age: float, most: int) -> int:
        """Forget batches that were copied so many seconds ago. Returns how many."""
        return int(self._database.ask("feeds/forget.sql", age=age, most=most)[0].count)
