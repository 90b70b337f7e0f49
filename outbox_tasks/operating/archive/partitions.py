"""The archive's partitions: which days there are, and that there are always some ahead."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy.sql import Executable

from outbox_tasks.operating.archive import statements
from outbox_tasks.operating.archive.export import Day
from outbox_tasks.relay.store import Store

AHEAD = 7
"""Days for which there are partitions before they begin."""

MARGIN = timedelta(hours=1)
"""How long a day must be over before it is touched: longer than any settle that had looked at the clock before."""

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Rows that claim to be from before or after are nobody's day, and stay."""

OLDEST = 400
"""Days ago: for older rows no partitions are made."""

FULL = 1000
"""Pages of the default partition, some ten thousand rows, that are read in an instant."""

PAGES = 128
"""Pages from which rows are taken at once: some thousand rows."""
PAUSE = 0.05
"""Seconds between two batches: room for others."""

TRIES = 8
"""How often a run tries what it can't do while somebody is in the way; then it is left to the next run."""
WAITS = (0.05, 0.25)
"""Seconds between two of these, at random: whoever comes at regular intervals is not met each time."""


class Over(NamedTuple):
    """The days that are wholly before a day: those in partitions, the oldest first, then those of the default one."""

    before: date
    days: list[Day]


def over(store: Store, older_than: timedelta) -> Over:
    """The days that are wholly older, by the database's clock. A day is one of UTC, and has 24 hours."""
    found = store.rows(statements.partitions(store.tables), {})
    before = (found[0].now.astimezone(UTC) - max(older_than, MARGIN)).date()
    days, rest = [], []
    for row in found:
        table = statements.partition(store.tables, row.name)
        if row.name == statements.DEFAULT:
            default = Day(before, table, row.pages, whole=False)
            rest = [default._replace(day=day) for day in _days_of(store, default) if day < before]
        elif (day := day_of(row.name, row.since, row.until)) and day < before:
            days.append(Day(day, table, row.pages))
    return Over(before, sorted(days, key=lambda one: one.day) + rest)


def prepare(store: Store) -> int:
    """Make the partitions of today and the next days; returns how many were missing.

    The default partition has rows of days for which nobody made a partition in time, and no partition can be attached
    for a day that has rows there. Nor for any, if it has so many that PostgreSQL, which reads them to attach another,
    would never be done. An empty one then takes its place, and `refill` does the rest.
    """
    found = store.rows(statements.partitions(store.tables), {})
    today = found[0].now.astimezone(UTC).date()
    missing = {today + timedelta(days=n) for n in range(AHEAD + 1)} - attached(found)
    default = next((row for row in found if row.name == statements.DEFAULT), None)
    if default is not None and ((missing and default.pages > FULL) or _has_misplaced(store, default, today)):
        patiently(store, statements.renew_default(store.settings.database_schema))
    prepare_days(store, AHEAD)
    return len(missing & attached(store.rows(statements.partitions(store.tables), {})) if missing else ())


def prepare_days(store: Store, days: int = 7) -> int:
    """Make the partitions of today and the next `days`, as the migrations do; returns how many were missing."""
    rows = store.rows(statements.prepare_archive(store.settings.database_schema, days), {})
    return int(rows[0][0])


def attached(found: Iterable[Any]) -> set[date | None]:
    """The days that have a partition, of the rows of `statements.partitions`."""
    return {day_of(row.name, row.since, row.until) for row in found if row.attached}


def _has_misplaced(store: Store, default: Any, today: date) -> bool:
    """Whether the default partition has rows of a day that may have a partition of its own. Those that are so old that
    they are to go now do not count."""
    kept = timedelta(seconds=store.settings.archive_retention) or timedelta(days=OLDEST)
    table = statements.partition(store.tables, default.name)
    days = _days_of(store, Day(today, table, default.pages, whole=False))
    return any(today - kept <= day <= today + timedelta(days=AHEAD) for day in days)


def refill(store: Store, seconds: float) -> bool:
    """Move the rows of former default partitions to where they belong, for so long. Returns whether there are more."""
    ends = time.monotonic() + seconds
    for row in store.rows(statements.partitions(store.tables), {}):
        if not row.name.startswith(statements.REST):
            continue
        rest, today = statements.partition(store.tables, row.name), row.now.astimezone(UTC).date()
        whole = Day(today, rest, row.pages)
        for day in _days_of(store, whole):
            if day >= today - timedelta(days=OLDEST):
                begins = datetime.combine(day, datetime.min.time(), UTC)
                store.rows(statements.make_day(store.settings.database_schema, begins), {})
        move = statements.move(store.tables, rest)
        for span in whole.spans(PAGES):
            [(moved,)] = store.rows(move, {"first": span["first"], "last": span["last"]})
            if moved:
                if time.monotonic() >= ends:
                    return True
                time.sleep(PAUSE)
        store.do(statements.drop(rest), {})
    return False


def patiently(store: Store, statement: Executable) -> bool:
    """Do what can only be done while nobody is in the way, and keeps nobody waiting. Returns whether it was done."""
    for _ in range(TRIES):
        if store.rows(statement, {})[0][0]:
            return True
        time.sleep(random.uniform(*WAITS))
    return False


def day_of(name: str, since: datetime | None, until: datetime | None) -> date | None:
    """The day of a partition that is one; None: somebody's own division of time, which is left alone."""
    if name.startswith(statements.GONE):
        return datetime.strptime(name.removeprefix(statements.GONE), "%Y%m%d").replace(tzinfo=UTC).date()
    if since is None or until is None or until - since != timedelta(days=1):
        return None
    start = since.astimezone(UTC)
    return start.date() if (start.hour, start.minute, start.second, start.microsecond) == (0, 0, 0, 0) else None


def _days_of(store: Store, table: Day) -> list[date]:
    """The days of which a table has rows, the oldest first."""
    statement, found = statements.days(table.table), set()
    for span in table.spans():
        found |= {row.day.date() for row in store.rows(statement, {**span, "since": EARLIEST, "until": LATEST})}
    return sorted(found)
