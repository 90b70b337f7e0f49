"""Housekeeping: exports and drops old days of the archive, and deletes other old rows; on one host at a time.

It hardly disturbs the pipe. A day goes as a partition, for which settles wait some milliseconds; other rows go in small
batches with pauses. If something fails, the next run tries it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta

from sqlalchemy.sql import Executable

from outbox_tasks.database import inbox
from outbox_tasks.errors import ArchiveBusy, DayNotOver, MaintainedElsewhere, OutboxError
from outbox_tasks.operating.archive import statements as archive
from outbox_tasks.operating.archive.export import Day, Part, Progress, export, no_progress
from outbox_tasks.operating.archive.partitions import (
    PAGES,
    PAUSE,
    TRIES,
    ended_days,
    prepare,
    refill,
    retry_while_locked,
)
from outbox_tasks.relay.store import Store
from outbox_tasks.settings.operation import DAY

log = logging.getLogger(__name__)

ACTS = 365 * DAY
"""Seconds for which acts of people are kept."""

MARKS = 5_000
"""Marks of the inbox that one statement deletes."""
MOMENT = 0.5
"""Seconds after which a run begins no further batch or day: its worker may also have to claim."""


@dataclass
class Trimmed:
    """The result for the archive's old days."""

    dropped: list[date] = field(default_factory=list)
    exported: list[Part] = field(default_factory=list)
    kept: dict[date, str] = field(default_factory=dict)
    """Days that could not be dropped, and why."""
    deleted: int = 0
    """Rows of the default partition that were deleted."""
    more: bool = False
    """Whether days are left for lack of time."""


@dataclass
class Maintained:
    """The result of a run."""

    made: int = 0
    """Partitions."""
    forgotten: int = 0
    """Marks of the inbox."""
    trimmed: Trimmed = field(default_factory=Trimmed)
    failed: list[str] = field(default_factory=list)
    """What failed, and why."""
    more: bool = False
    """Whether there is more to do now."""

    def __str__(self) -> str:
        done = f"made {self.made} partitions, forgot {self.forgotten} marks, dropped {len(self.trimmed.dropped)} days"
        return done + (f", could not drop {len(self.trimmed.kept)}" if self.trimmed.kept else "")


def maintain(store: Store) -> Maintained:
    """Do the housekeeping for a moment. If a part fails, that is logged, and the others go on.

    Raises `MaintainedElsewhere`, or `DatabaseUnavailable` if it can't even begin.
    """
    done = Maintained()
    with _alone(store):
        with _logged("could not make the archive's next partitions", done):
            done.made = prepare(store)
            done.more = refill(store, MOMENT)
            store.rows(archive.call(store.settings.database_schema, "share"), {})
        with _logged("could not delete old counts, workers and acts", done):
            store.traffic.forget_publishers()
            _forget_small(store)
        with _logged("could not delete old marks of the inbox", done):
            done.forgotten, more = forget_marks(store)
            done.more = done.more or more
        if store.settings.archive_retention:
            with _logged("could not drop old days of the archive", done):
                _trim(store, timedelta(seconds=store.settings.archive_retention), done.trimmed, patient=False)
            done.more = done.more or done.trimmed.more
    if kept := done.trimmed.kept:
        day, why = next(iter(kept.items()))
        log.warning("could not drop %d days of the archive; %s: %s", len(kept), day, why)
    return done


def drop_days(store: Store, older_than: timedelta) -> Trimmed:
    """Drop the days of the archive that are wholly older; export them first, if `archive_export` is set.

    Raises `MaintainedElsewhere` or `DatabaseUnavailable`.
    """
    done = Trimmed()
    with _alone(store):
        _trim(store, older_than, done, patient=True)
    return done


def days_before(store: Store, older_than: timedelta) -> list[date]:
    """The days of the archive that are wholly older, the oldest first."""
    return sorted({one.day for one in ended_days(store, older_than).days})


def export_days(
    store: Store, url: str, day: date | None = None, begun: Callable[[Day], Progress] = lambda day: no_progress
) -> list[Part]:
    """Export a day of the archive, or all ended days, without dropping them. `begun` is called with each day, and
    returns the callback for its rows.

    Raises `DayNotOver`, `MaintainedElsewhere`, or what `export` raises.
    """
    with _alone(store):
        before, days = ended_days(store, timedelta())
        if day is not None and day >= before:
            raise DayNotOver(day=day)
        chosen = [one for one in days if day in (None, one.day)]
        return [part for one in chosen if (part := _exported(store, one, url, begun(one)))]


def forget(store: Store, size: int) -> int:
    """Delete up to `size` of the inbox's marks that are older than `inbox_retention`; returns how many."""
    return store.do(inbox.forget(store.tables), {"keep": store.settings.inbox_retention, "size": size})


def forget_marks(store: Store) -> tuple[int, bool]:
    """Delete the inbox's old marks, for a moment. Returns how many, and whether there are more."""
    ends = time.monotonic() + MOMENT
    count = 0
    while (gone := forget(store, MARKS)) == MARKS:
        count += gone
        if time.monotonic() >= ends:
            return count, True
        time.sleep(PAUSE)
    return count + gone, False


def _forget_small(store: Store) -> None:
    t = store.tables
    store.do(archive.forget(t.tallies, t.tallies.c.minute), {"keep": DAY})
    store.do(archive.forget(t.heartbeats, t.heartbeats.c.seen_at, t.heartbeats.c.kind == "worker"), {"keep": DAY})
    store.do(archive.forget(t.audit, t.audit.c.at), {"keep": ACTS})


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    with store.alone("maintain") as ours:
        if not ours:
            raise MaintainedElsewhere
        yield


@contextmanager
def _logged(failure: str, done: Maintained) -> Iterator[None]:
    try:
        yield
    except OutboxError as error:
        log.warning("%s; the next maintenance tries again: %s", failure, error)
        done.failed.append(f"{failure}: {error}")


def _trim(store: Store, older_than: timedelta, done: Trimmed, *, patient: bool) -> None:
    """Drop the days that are older. If one can't be dropped, the next ones are tried all the same."""
    ends = time.monotonic() + MOMENT
    for day in ended_days(store, older_than).days:
        # Only a run that dropped something may ask for another one at once. Otherwise runs would follow each other
        # without end.
        if done.dropped and not patient and time.monotonic() >= ends:
            done.more = True
            return
        try:
            _remove(store, day, done)
        except OutboxError as error:
            done.kept[day.day] = str(error)
        else:
            done.dropped.append(day.day)
            log.info("the archive's %s is dropped", day.day)


def _remove(store: Store, day: Day, done: Trimmed) -> None:
    """Export a day, if `archive_export` is set, and drop it."""
    _export(store, day, done)
    if not day.whole:
        done.deleted += _delete(store, day)
        return
    if not day.table.name.startswith(archive.GONE):
        day = _detached(store, day)
        # Now nobody can add rows to it. If somebody has added rows since the export, this exports it again.
        _export(store, day, done)
    store.rows(archive.call(store.settings.database_schema, "drop", day.table.name), {})


def _export(store: Store, day: Day, done: Trimmed) -> None:
    url = store.settings.archive_export
    if url is not None and (part := _exported(store, day, url)) and part.written:
        done.exported.append(part)


def _exported(store: Store, day: Day, url: str, progress: Progress = no_progress) -> Part | None:
    if not day.whole:
        _retry(archive.call(store.settings.database_schema, "await_settles"), store, day)
    return export(store, day, url, store.settings.archive_format, progress)


def _detached(store: Store, day: Day) -> Day:
    """Detach a day's partition. Its new name says that it is to be dropped."""
    _retry(archive.call(store.settings.database_schema, "detach", day.table.name), store, day)
    return day._replace(table=archive.partition(store.tables, f"{archive.GONE}{day.day:%Y%m%d}"))


def _retry(statement: Executable, store: Store, day: Day) -> None:
    if not retry_while_locked(store, statement):
        raise ArchiveBusy(day=day.day, tries=TRIES)


def _delete(store: Store, day: Day) -> int:
    """Delete a day's rows of the default partition, in small batches."""
    statement, count = archive.remove(day.table), 0
    for span in day.spans(PAGES):
        if gone := store.do(statement, span):
            count += gone
            time.sleep(PAUSE)
    return count
