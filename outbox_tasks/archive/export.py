"""Writes days of the archive to files, reads them back, and compares them with the database.

    <url>/outbox_archive/day=2026-11-20/part-0.parquet       the rows, where DuckDB and Spark look for them
    <url>/outbox_archive/day=2026-11-20/_manifest.json       the verified files, with rows and checksum

Only the files in the manifest count. After a crash, the next try replaces any other file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from outbox_tasks.archive import files
from outbox_tasks.archive.files import SUFFIX, Measure
from outbox_tasks.archive.storage import DayStorage, opened
from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ArchiveExportFailed, DayKept
from outbox_tasks.operating.days import Day, days, ended_days
from outbox_tasks.operating.retention import alone
from outbox_tasks.relay.store import Store

MESSAGES_A_READ, READ_BYTES = 10_000, 16 * 1024 * 1024
"""Messages, and bytes of payload, that are read at a time; a larger message is read alone."""


@dataclass(frozen=True)
class Part:
    """A verified file."""

    day: date
    file: str
    """Its URL, without a login."""
    rows: int
    bytes: int
    checksum: str
    written: bool
    """Whether this call wrote it, not an earlier one."""


def export(database: Database, day: Day, url: str) -> Part | None:
    """Write the rows of a day below `url`, unless a verified file has them already. None: there are no rows.

    Raises `ArchiveExportFailed`, `NotInstalled` or `DatabaseUnavailable`: then no
    verified file has these rows.
    """
    expected = measured(database, day)
    if not expected.rows:
        return None
    with opened(url, day.date) as storage:
        parts = storage.parts()
        same = [part for part in parts if (part["rows"], part["checksum"]) == expected]
        part = next((part for part in same if storage.size(part["file"]) == part["bytes"]), None)
        written = part is None
        if part is None:
            # A day of that date may have another number: its part may be the only copy of its rows.
            others = [part for part in parts if part["number"] != day.number]
            name = f"{_free_name(others)}{SUFFIX}"
            part = _write(database, storage, day, expected, name)
            storage.write_parts(day.date, [*others, part])
        url = f"{storage.place}/{part['file']}"
        return Part(day.date, url, part["rows"], part["bytes"], part["checksum"], written)


def export_days(
    store: Store, url: str, day: date | None = None, on_part: Callable[[Part], object] = lambda part: None
) -> list[Part]:
    """Export a day of the archive, or all ended days, without dropping them. `on_part` is called with each one.

    Raises `DayKept`, `MaintainedElsewhere`, or what `export` raises.
    """
    with alone(store):
        ended = ended_days(store, timedelta())
        if day is not None and any(each.ended_at is None and day >= each.date for each in days(store)):
            reason = "rows may still be added to it. A day (UTC) can be exported an hour after its end"
            raise DayKept(day=day, reason=reason)
        parts = []
        for each in ended:
            if day in (None, each.date) and (part := export(store, each, url)):
                parts.append(part)
                on_part(part)
        return parts


def measured(database: Database, day: Day) -> Measure:
    """The number of rows that the database has of a day, and their checksum, made there."""
    rows = total = 0
    for span in _spans(database, day):
        [(count, digests)] = database.ask("keep/measured.sql", **span)
        rows, total = rows + count, total + int(digests)
    return Measure.of(rows, total)


def _spans(database: Database, day: Day) -> Iterator[dict[str, int]]:
    """The day's numbers, in lots that fit into memory."""
    after, until = day.number << 32, (day.number + 1) << 32
    after -= 1
    while (
        last := database.ask("keep/lot.sql", after=after, until=until, most=MESSAGES_A_READ, bytes=READ_BYTES)[0].last
    ) is not None:
        yield {"after": after, "last": last}
        after = last


def _free_name(parts: Sequence[dict[str, Any]]) -> str:
    """The first name of a file, without a suffix, that none of the parts has."""
    taken = {part["file"].partition(".")[0] for part in parts}
    return next(name for number in range(len(parts) + 1) if (name := f"part-{number}") not in taken)


def _write(database: Database, storage: DayStorage, day: Day, expected: Measure, file: str) -> dict[str, Any]:
    """Write a file, read it back, and return its entry in the manifest."""
    lots = (database.ask("keep/rows.sql", **span) for span in _spans(database, day))
    storage.clear()
    storage.write(file, lambda target: files.write(target, lots))
    found = verified(storage, file)
    if found != expected:
        storage.remove(file)
        reason = f"the file does not hold what the database holds: {found} instead of {expected}"
        raise ArchiveExportFailed(day=day.date, place=storage.place, reason=reason)
    return {
        "file": file,
        "rows": found.rows,
        "checksum": found.checksum,
        "bytes": storage.size(file),
        "number": day.number,
        "verified_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def verified(storage: DayStorage, file: str) -> Measure:
    """The measure of a file, as it is read back."""
    with storage.open(file) as source:
        return files.measured(files.read(source))
