"""Housekeeping: exports and drops old days of the archive, and deletes other old rows; on one host at a time.

It hardly disturbs the pipe. A day goes as a partition, for which settles wait some milliseconds; other rows go in small
batches with pauses. If something fails, the next run tries it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta

from outbox_tasks.errors import DayKept, MaintainedElsewhere, OutboxError
from outbox_tasks.operating.days import TRIES, Day, dropped, ended_days, turn
from outbox_tasks.relay.store import Store
from outbox_tasks.satellites import satellite, satellites
from outbox_tasks.settings.operation import DAY_SECONDS

log = logging.getLogger(__name__)

ROWS_A_BATCH = 5_000
"""Old rows of a kind that a run deletes. Between two runs there is room for the work of others."""

RUN_SECONDS = 0.5
"""After this time a run begins no further day: its worker may also have to claim."""


@dataclass
class Maintained:
    """The result of a run."""

    made: int = 0
    """Partitions."""
    forgotten: int = 0
    """Marks of the inbox."""
    dropped: list[date] = field(default_factory=list)
    """Old days of the archive."""
    kept: dict[date, str] = field(default_factory=dict)
    """Days that could not be dropped, and why."""
    failed: list[str] = field(default_factory=list)
    """What failed, and why."""
    more: bool = False
    """Whether there is more to do now."""

    def __str__(self) -> str:
        text = f"made {self.made} partitions, forgot {self.forgotten} marks, dropped {len(self.dropped)} days"
        return text + (f", could not drop {len(self.kept)}" if self.kept else "")


def maintain(store: Store) -> Maintained:
    """Do the housekeeping for a moment. If a part fails, that is logged, and the others go on.

    Raises `MaintainedElsewhere`, or `DatabaseUnavailable` if it can't even begin.
    """
    result = Maintained()
    with alone(store):
        with _logged("could not make the next days", result):
            result.made = turn(store)
        with _logged("could not delete old counts, workers and acts", result):
            store.ask("keep/forget.sql", acts=365.0 * DAY_SECONDS)
        with _logged("could not delete old marks of the inbox", result):
            result.forgotten, result.more = forget_marks(store)
        for name, each in satellites().items():
            with _logged(f"could not delete old rows of {name}", result):
                each.maintain(store)
        settings = store.settings
        if settings.archive_retention:
            with _logged("could not drop old days of the archive", result):
                trim(store, timedelta(seconds=settings.archive_retention), result)
    for day, why in [*result.kept.items()][:1]:
        log.warning("could not drop %d days of the archive; %s: %s", len(result.kept), day, why)
    return result


def forget_marks(store: Store) -> tuple[int, bool]:
    """Delete some of the inbox's marks that are older than `inbox_retention`. Returns how many, and whether there may
    be more."""
    gone = store.ask("inbox/forget.sql", keep=store.settings.inbox_retention, most=ROWS_A_BATCH)[0].count
    return gone, gone == ROWS_A_BATCH


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Nobody else does housekeeping meanwhile. Raises `MaintainedElsewhere`."""
    with store.alone("maintain") as ours:
        if not ours:
            raise MaintainedElsewhere
        yield


@contextmanager
def _logged(failure: str, result: Maintained) -> Iterator[None]:
    try:
        yield
    except OutboxError as error:
        log.warning("%s; the next maintenance tries again: %s", failure, error)
        result.failed.append(f"{failure}: {error}")


def trim(store: Store, older_than: timedelta, result: Maintained) -> None:
    """Drop the days that are wholly older, for a moment; export them first, if `archive_export` is set. If a day can't
    be dropped, the next ones are tried all the same."""
    ends = time.monotonic() + RUN_SECONDS
    for day in ended_days(store, older_than):
        # Only a run that dropped something may ask for another one at once. Otherwise runs would follow each other
        # without end.
        if result.dropped and time.monotonic() >= ends:
            result.more = True
            return
        try:
            _remove(store, day)
        except OutboxError as error:
            result.kept[day.date] = str(error)
        else:
            result.dropped.append(day.date)
            log.info("the archive's %s is dropped", day.date)
    # Also those of days that an earlier run dropped.
    result.more |= store.ask("keep/troubles.sql", most=ROWS_A_BATCH)[0].count >= ROWS_A_BATCH


def _remove(store: Store, day: Day) -> None:
    """Export a day, if `archive_export` is set, and drop it. A day stays unless all of its messages have ended."""
    if store.ask("keep/writers.sql", day=day.number)[0].open:  # once it is not, it stays so
        raise DayKept(
            day=day.date,
            reason="a transaction that wrote messages on that day is still open. The next maintenance tries again. End "
            "sessions that stay open for hours",
        )
    if count := store.ask("keep/at_work.sql", **day.span, most=10_000)[0].count:
        raise DayKept(
            day=day.date,
            reason=f"{count} of its messages are still at work. See `outbox-tasks list`: dead letters can be redriven "
            "or discarded",
        )
    # Of messages that are not at work and have not ended, something has lost them.
    if (lost := store.ask("keep/missing.sql", 600.0, **day.span)[0].count) > 0:
        raise DayKept(
            day=day.date,
            reason=f"{lost} of its messages are neither at work, nor does the journal say that they ended. Somebody "
            "has deleted rows by hand, or it is a bug: please report it. `sql/look/strays.sql` names them",
        )
    if (url := store.settings.archive_export) is not None:
        satellite("archive").export(store, day, url)
    if not dropped(store, day):
        raise DayKept(
            day=day.date,
            reason=f"it could not be removed in {TRIES} tries: other sessions were reading or writing there, and the "
            "maintenance does not make them wait. The next maintenance tries again. End sessions that stay open for "
            "hours",
        )
