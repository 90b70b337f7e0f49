"""The archive's partitions: one for each day, made ahead."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import DateTime, cast, literal
from sqlalchemy.sql import Executable

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.archive import statements
from outbox_tasks.operating.archive.export import Day
from outbox_tasks.relay.store import Store

AHEAD = 7
"""Days for which there are partitions before they begin."""

MARGIN = timedelta(hours=1)
"""Maintenance touches a day this long after its end. A settle that read the clock before midnight has ended by then."""

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Rows with earlier or later times belong to no day, and stay."""

OLDEST = 400
"""Days; no partitions are made for older rows."""

FULL = 1000
"""Pages of the default partition that PostgreSQL reads in an instant: some ten thousand rows."""

PAGES = 128
"""Pages whose rows are moved or deleted at a time: some thousand rows."""
PAUSE = 0.05
"""Seconds between two batches, for the work of others."""

TRIES = 8
"""How often a run tries again while somebody holds a lock. Then the next run tries."""
WAITS = (0.05, 0.25)
"""Seconds between two tries, at random: a regular lock would meet regular tries each time."""


class EndedDays(NamedTuple):
    """The days before a date: first those with partitions, from the oldest, then those in the default partition."""

    before: date
    days: list[Day]


def ended_days(store: Store, older_than: timedelta) -> EndedDays:
    """The days (UTC) that are wholly older, by the database's clock."""
    found = store.rows(statements.partitions(store.tables), {})
    before = (found[0].now.astimezone(UTC) - max(older_than, MARGIN)).date()
    ended = [day for _, day in _days(store, found) if day.day < before]
    return EndedDays(before, sorted(ended, key=lambda one: (not one.whole, one.day)))


def attached_days(database: Database) -> list[Day]:
    """All days of the archive, the oldest first. Rows that a day has in the default partition come second."""
    days = _days(database, database.rows(statements.partitions(database.tables), {}))
    return sorted((day for attached, day in days if attached), key=lambda one: (one.day, not one.whole))


def _days(database: Database, found: Iterable[Any]) -> Iterator[tuple[bool, Day]]:
    """The days of partitions, and whether these are attached. `found`: rows of `statements.partitions`."""
    for row in found:
        table = statements.partition(database.tables, row.name)
        if row.name == statements.DEFAULT:
            default = Day(row.now.astimezone(UTC).date(), table, row.pages, whole=False)
            yield from ((True, default._replace(day=day)) for day in _days_of(database, default))
        elif day := day_of(row.name, row.since, row.until):
            yield row.attached, Day(day, table, row.pages)


def prepare(store: Store) -> int:
    """Make the partitions of today and the next days; returns how many were missing.

    Rows of days without a partition are in the default partition. That prevents a partition for their day. If they are
    many, it prevents all others too: PostgreSQL reads them for each new one. Then an empty default partition takes its
    place, and `refill` moves the rows.
    """
    found = store.rows(statements.partitions(store.tables), {})
    today = found[0].now.astimezone(UTC).date()
    missing = {today + timedelta(days=n) for n in range(AHEAD + 1)} - attached(found)
    default = next((row for row in found if row.name == statements.DEFAULT), None)
    if default is not None and ((missing and default.pages > FULL) or _has_misplaced(store, default, today)):
        retry_while_locked(store, statements.call(store.settings.database_schema, "renew_default"))
    prepare_days(store, AHEAD)
    return len(missing & attached(store.rows(statements.partitions(store.tables), {})) if missing else ())


def prepare_days(store: Store, days: int = 7) -> int:
    """Make the partitions of today and the next `days`; returns how many were missing."""
    rows = store.rows(statements.call(store.settings.database_schema, "prepare", days), {})
    return int(rows[0][0])


def attached(found: Iterable[Any]) -> set[date | None]:
    """The days that have a partition. `found`: rows of `statements.partitions`."""
    return {day_of(row.name, row.since, row.until) for row in found if row.attached}


def _has_misplaced(store: Store, default: Any, today: date) -> bool:
    """Whether the default partition has rows of a day that may have a partition of its own. Rows that retention is
    about to delete don't count."""
    kept = timedelta(seconds=store.settings.archive_retention) or timedelta(days=OLDEST)
    table = statements.partition(store.tables, default.name)
    days = _days_of(store, Day(today, table, default.pages, whole=False))
    return any(today - kept <= day <= today + timedelta(days=AHEAD) for day in days)


def refill(store: Store, seconds: float) -> bool:
    """Move the rows of former default partitions back into the archive, for so long. Returns whether there are more."""
    ends = time.monotonic() + seconds
    for row in store.rows(statements.partitions(store.tables), {}):
        if not row.name.startswith(statements.REST):
            continue
        rest, today = statements.partition(store.tables, row.name), row.now.astimezone(UTC).date()
        whole = Day(today, rest, row.pages)
        for day in _days_of(store, whole):
            if day >= today - timedelta(days=OLDEST):
                begins = cast(literal(datetime.combine(day, datetime.min.time(), UTC)), DateTime(True))
                store.rows(statements.call(store.settings.database_schema, "make_day", begins), {})
        move = statements.move(store.tables, rest)
        for span in whole.spans(PAGES):
            [(moved,)] = store.rows(move, {"first": span["first"], "last": span["last"]})
            if moved:
                if time.monotonic() >= ends:
                    return True
                time.sleep(PAUSE)
        store.rows(statements.call(store.settings.database_schema, "drop", row.name), {})
    return False


def retry_while_locked(store: Store, statement: Executable) -> bool:
    """Run a statement that gives up when somebody holds a lock, some times. Returns whether it succeeded."""
    for _ in range(TRIES):
        if store.rows(statement, {})[0][0]:
            return True
        time.sleep(random.uniform(*WAITS))  # noqa: S311 - nothing secret
    return False


def day_of(name: str, since: datetime | None, until: datetime | None) -> date | None:
    """The day of a partition; None: it is not one day's, so somebody else made it, and it is left alone."""
    if name.startswith(statements.GONE):
        return datetime.strptime(name.removeprefix(statements.GONE), "%Y%m%d").replace(tzinfo=UTC).date()
    if since is None or until is None or until - since != timedelta(days=1):
        return None
    start = since.astimezone(UTC)
    return start.date() if (start.hour, start.minute, start.second, start.microsecond) == (0, 0, 0, 0) else None


def _days_of(database: Database, table: Day) -> list[date]:
    """The days whose rows are in a table, the oldest first."""
    statement, found = statements.days(table.table), set()
    for span in table.spans():
        found |= {row.day.date() for row in database.rows(statement, {**span, "since": EARLIEST, "until": LATEST})}
    return sorted(found)
