"""Days of the archive as files: written, read back, compared with the database, and only then believed.

    <url>/outbox_archive/day=2026-11-20/part-0.parquet       the rows, where DuckDB and Spark look for them
    <url>/outbox_archive/day=2026-11-20/_manifest.json       what was verified: rows and checksum of each part

A crash at any moment leaves a file that nobody believes, and that the next try replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Table

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ArchiveNotVerified
from outbox_tasks.operating.archive import files, statements
from outbox_tasks.operating.archive.files import SUFFIXES, Measure, Row
from outbox_tasks.operating.archive.storage import DayStorage, opened

PAGES = 1024
"""Pages of a table that one statement looks at: some ten thousand rows."""

Told = Callable[[int, int], None]
"""Is called with how many rows have been dealt with since it was called last, and how many there are in all: those to
be written, and as many to be read back."""


def nobody(done: int, total: int) -> None:
    """Who is not interested."""


class Day(NamedTuple):
    """The rows of a day (UTC) that are in one table."""

    day: date
    table: Table
    pages: int
    """Of the table."""
    whole: bool = True
    """It is the day's own partition; else the default one, which may have some more of the day later."""

    def spans(self, pages: int = PAGES) -> Iterator[dict[str, Any]]:
        """Parameters for the statements of `archive`: the day's rows, in ranges of so many pages."""
        since = datetime.combine(self.day, time(), UTC)
        times = {"since": since, "until": since + timedelta(days=1)}
        for page in range(0, self.pages, pages):
            yield {"first": f"({page},0)", "last": f"({page + pages},0)", **times}


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
    """By this call; else by an earlier one."""


def measured(database: Database, day: Day) -> Measure:
    """How many rows a day has in the database, and their checksum, made there."""
    statement, rows, total = statements.measured(day.table), 0, 0
    for span in day.spans():
        [(count, digests)] = database.rows(statement, span)
        rows, total = rows + count, total + int(digests)
    return Measure.of(rows, total)


def export(database: Database, day: Day, url: str, format: str, told: Told = nobody) -> Part | None:
    """Write the rows of a day below `url`, unless a verified file has them already. None: there are no rows.

    Raises `ArchiveExportFailed`, `ArchiveNotVerified`, `ArchiveFilesNotInstalled` or `DatabaseUnavailable`: then no
    verified file has these rows.
    """
    expected = measured(database, day)
    if not expected.rows:
        return None
    with opened(url, day.day) as storage:
        parts = storage.parts()
        for part in parts:
            if _holds(part, expected) and storage.size(part["file"]) == part["bytes"]:
                return _told(storage, day, part, written=False)
        # Other parts may be the only copy of rows that are not in the database any more. Not that of this very table.
        others = [part for part in parts if not (_holds(part, expected) or (day.whole and part["whole"]))]
        heard = partial(_tell, told, 2 * expected.rows)
        made = _write(database, storage, day, expected, _free(others), format, heard)
        storage.write_parts(day.day, [*others, made])
        return _told(storage, day, made, written=True)


def _tell(told: Told, total: int, done: int) -> None:
    told(done, total)


def _holds(part: dict[str, Any], expected: Measure) -> bool:
    return (part["rows"], part["checksum"]) == expected


def _free(parts: Sequence[dict[str, Any]]) -> str:
    """The first name of a file, without a suffix, that none of the parts has."""
    taken = {part["file"].partition(".")[0] for part in parts}
    return next(name for number in range(len(parts) + 1) if (name := f"part-{number}") not in taken)


def _write(
    database: Database,
    storage: DayStorage,
    day: Day,
    expected: Measure,
    name: str,
    format: str,
    told: Callable[[int], None],
) -> dict[str, Any]:
    """Write a file, read it back, and return what the manifest is to say of it."""
    storage.clear()
    file = f"{name}.{SUFFIXES[format]}"
    storage.write(file, lambda target: files.write(target, format, _lots(database, day, told)))
    found = verified(storage, file, format, told)
    if found != expected:
        storage.remove(file)
        raise ArchiveNotVerified(day=day.day, place=storage.place, found=found, expected=expected)
    return {
        "file": file,
        "rows": found.rows,
        "checksum": found.checksum,
        "bytes": storage.size(file),
        "whole": day.whole,
        "verified_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def verified(storage: DayStorage, file: str, format: str, told: Callable[[int], None]) -> Measure:
    """What a file holds, as it is read back."""
    with storage.open(file) as source:
        return files.measured(_counted(files.read(source, format), told))


def _lots(database: Database, day: Day, told: Callable[[int], None]) -> Iterator[Sequence[Row]]:
    """The rows of a day, so many at once as memory has room for."""
    lots, rows = statements.lots(day.table), statements.rows(day.table)
    for span in day.spans():
        for lot in database.rows(lots, span):
            found = database.rows(rows, {**span, "first": lot.first, "last": lot.last})
            yield found
            told(len(found))


def _counted(rows: Iterator[Row], told: Callable[[int], None]) -> Iterator[Row]:
    number = 0
    for number, row in enumerate(rows, 1):
        yield row
        if number % 1000 == 0:
            told(1000)
    told(number % 1000)


def _told(storage: DayStorage, day: Day, part: dict[str, Any], *, written: bool) -> Part:
    file = f"{storage.place}/{part['file']}"
    return Part(day.day, file, part["rows"], part["bytes"], part["checksum"], written)
