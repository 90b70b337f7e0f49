"""Keep it small: what is old is exported, if that is wanted, and dropped; on one host at a time.

Nothing here waits for the pipe, and the pipe for nothing here: a day goes as a partition, for which settles wait some
milliseconds once; the rest goes in small batches with pauses. Whatever fails is tried again by the next run.
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
from outbox_tasks.operating.archive.export import Day, Part, Told, export, nobody
from outbox_tasks.operating.archive.partitions import PAGES, PAUSE, TRIES, over, patiently, prepare, refill
from outbox_tasks.relay.store import Store
from outbox_tasks.settings.operation import DAY

log = logging.getLogger(__name__)

ACTS = 365 * DAY
"""Seconds for which it is kept who did what, and why."""

MARKS = 5_000
"""Marks of the inbox that are forgotten at once."""
MOMENT = 0.5
"""Seconds for which a run goes on to a next batch or day: a worker that also claims must not be held up for long."""


@dataclass
class Trimmed:
    """What became of the archive's old days."""

    dropped: list[date] = field(default_factory=list)
    exported: list[Part] = field(default_factory=list)
    kept: dict[date, str] = field(default_factory=dict)
    """Days that were to go and are still there, and why."""
    deleted: int = 0
    """Rows of these days that were in the default partition."""
    more: bool = False
    """There are days that were not looked at for want of time."""


@dataclass
class Maintained:
    """What a run has done."""

    made: int = 0
    forgotten: int = 0
    """Marks of the inbox."""
    trimmed: Trimmed = field(default_factory=Trimmed)
    failed: list[str] = field(default_factory=list)
    """What could not be done, and why."""
    more: bool = False
    """There is more to do at once."""

    def __str__(self) -> str:
        told = f"made {self.made} partitions, forgot {self.forgotten} marks, dropped {len(self.trimmed.dropped)} days"
        return told + (f", kept {len(self.trimmed.kept)} that were to go" if self.trimmed.kept else "")


def maintain(store: Store) -> Maintained:
    """All the housekeeping, for a moment. What fails is logged, and does not stop the rest.

    Raises `MaintainedElsewhere`, or `DatabaseUnavailable` if it can't even begin.
    """
    done = Maintained()
    with _alone(store):
        with _logged("the archive's next partitions are not made", done):
            done.made = prepare(store)
            done.more = refill(store, MOMENT)
        with _logged("old counts, workers and acts are not forgotten", done):
            store.traffic.forget_publishers()
            _forget_small(store)
        with _logged("the inbox is not rid of its old marks", done):
            done.forgotten, more = forget_marks(store)
            done.more = done.more or more
        if store.settings.archive_retention:
            with _logged("the archive is not rid of its old days", done):
                _trim(store, timedelta(seconds=store.settings.archive_retention), done.trimmed, patient=False)
            done.more = done.more or done.trimmed.more
    if kept := done.trimmed.kept:
        day, why = next(iter(kept.items()))
        log.warning("the archive still has %d days that were to be dropped; %s: %s", len(kept), day, why)
    return done


def drop_days(store: Store, older_than: timedelta) -> Trimmed:
    """Drop the days of the archive that are wholly older, as far as they can be: exported first, if `archive_export` is
    set.

    Raises `MaintainedElsewhere` or `DatabaseUnavailable`.
    """
    done = Trimmed()
    with _alone(store):
        _trim(store, older_than, done, patient=True)
    return done


def days_before(store: Store, older_than: timedelta) -> list[date]:
    """The days of the archive that are wholly older, the oldest first."""
    return sorted({one.day for one in over(store, older_than).days})


def export_days(
    store: Store, url: str, day: date | None = None, told: Callable[[Day], Told] = lambda day: nobody
) -> list[Part]:
    """Export a day of the archive, or all that are over, without dropping them. `told` gets each day as it begins, and
    returns what hears of its rows.

    Raises `DayNotOver`, `MaintainedElsewhere`, or what `export` does.
    """
    with _alone(store):
        before, days = over(store, timedelta())
        if day is not None and day >= before:
            raise DayNotOver(day=day)
        chosen = [one for one in days if day in (None, one.day)]
        return [part for one in chosen if (part := _exported(store, one, url, told(one)))]


def forget(store: Store, size: int) -> int:
    """Delete up to `size` of the inbox's marks that are older than `inbox_retention`; returns how many."""
    return store.do(inbox.forget(store.tables), {"keep": store.settings.inbox_retention, "size": size})


def forget_marks(store: Store) -> tuple[int, bool]:
    """Delete the inbox's marks that are older than their retention, for a moment. Returns how many, and whether there
    are more."""
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
    store.do(archive.forget_counts(t), {"keep": DAY})
    store.do(archive.forget_workers(t), {"keep": DAY})
    store.do(archive.forget_acts(t), {"keep": ACTS})


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    with store.alone("maintain") as ours:
        if not ours:
            raise MaintainedElsewhere
        yield


@contextmanager
def _logged(consequence: str, done: Maintained) -> Iterator[None]:
    try:
        yield
    except OutboxError as error:
        log.warning("%s; the next maintenance tries again: %s", consequence, error)
        done.failed.append(f"{consequence}: {error}")


def _trim(store: Store, older_than: timedelta, done: Trimmed, *, patient: bool) -> None:
    """Whatever keeps a day does not keep those after it."""
    ends = time.monotonic() + MOMENT
    for day in over(store, older_than).days:
        # Only what got on may call for another run at once: else it would come again and again.
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
    """Export a day, if that is wanted, and drop it."""
    _keep_copy(store, day, done)
    if not day.whole:
        done.deleted += _delete(store, day)
        return
    if not day.table.name.startswith(archive.GONE):
        day = _take_out(store, day)
        # Nobody can add to it now: if somebody has since it was exported, its copy is made anew.
        _keep_copy(store, day, done)
    store.do(archive.drop(day.table), {})


def _keep_copy(store: Store, day: Day, done: Trimmed) -> None:
    url = store.settings.archive_export
    if url is not None and (part := _exported(store, day, url)) and part.written:
        done.exported.append(part)


def _exported(store: Store, day: Day, url: str, told: Told = nobody) -> Part | None:
    if not day.whole:
        _patiently(archive.await_settles(store.settings.database_schema), store, day)
    return export(store, day, url, store.settings.archive_format, told)


def _take_out(store: Store, day: Day) -> Day:
    """Detach a partition: what it is called then says that it is to be dropped."""
    _patiently(archive.detach(store.settings.database_schema, day.table.name), store, day)
    return day._replace(table=archive.partition(store.tables, f"{archive.GONE}{day.day:%Y%m%d}"))


def _patiently(statement: Executable, store: Store, day: Day) -> None:
    if not patiently(store, statement):
        raise ArchiveBusy(day=day.day, tries=TRIES)


def _delete(store: Store, day: Day) -> int:
    """Delete a day's rows of the default partition, a little at a time."""
    statement, count = archive.remove(day.table), 0
    for span in day.spans(PAGES):
        if gone := store.do(statement, span):
            count += gone
            time.sleep(PAUSE)
    return count
