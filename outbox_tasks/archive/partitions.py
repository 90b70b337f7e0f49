"""The archive's partitions: which days there are, and that there are always some ahead."""

from __future__ import annotations

import random
import time
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from sqlalchemy.sql import Executable

from outbox_tasks.archive import statements
from outbox_tasks.archive.export import Day
from outbox_tasks.store import Store

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
        elif (day := _day(row.name, row.since, row.until)) and day < before:
            days.append(Day(day, table, row.pages))
    return Over(before, sorted(days, key=lambda one: one.day) + rest)


def prepare(store: Store) -> int:
    """Make the partitions of today and the next days; returns how many were missing.

    PostgreSQL reads the default partition to attach another. If it has filled while nobody made partitions, that would
    take so long that there would never be one again: an empty one then takes its place, and `refill` does the rest.
    """
    found = store.rows(statements.partitions(store.tables), {})
    today = found[0].now.astimezone(UTC).date()
    there = {_day(row.name, row.since, row.until) for row in found if row.attached}
    default = next((row for row in found if row.name == statements.DEFAULT), None)
    missing = any(today + timedelta(days=n) not in there for n in range(AHEAD + 1))
    if missing and default is not None and default.pages > FULL:
        patiently(store, statements.renew_default(store.settings.database_schema))
    return store.prepare_archive(AHEAD)


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


def _day(name: str, since: datetime | None, until: datetime | None) -> date | None:
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
