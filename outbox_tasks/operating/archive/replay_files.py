"""Reads the messages of exported files, to replay them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from outbox_tasks.errors import ArchiveUnreadable
from outbox_tasks.model import TASK_HEADER
from outbox_tasks.operating.archive import files
from outbox_tasks.operating.archive.files import COLUMNS, EPOCH, MICROSECOND, PAYLOAD, SUFFIX, Row
from outbox_tasks.operating.archive.replay_sources import Counted, Place, Source, Span, in_lots
from outbox_tasks.operating.archive.storage import explained
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.text import is_text

TEXTS = [name for name, kind in COLUMNS.items() if kind == "text"]
NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
NEEDED = ("id", "seq", "destination", "event_type", "state", "payload", "headers", "created_at", "finished_at")


def found(url: str) -> list[str]:
    """The files that a URL or path names; it may have the patterns * and ?. Raises as `read`."""
    with explained(url, ArchiveUnreadable):
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url)
        named = sorted(fs.glob(path)) if "*" in path or "?" in path else [path]
        if not named:
            raise FileNotFoundError("there is no such file")
        return [fs.unstrip_protocol(one) for one in named]


def read(urls: Sequence[str], wanted: Filter, span: Span) -> Kept:
    """The wanted messages of these files, each file a part. Raises `ArchiveUnreadable` or `ArchiveFilesNotInstalled`
    before anything is replayed."""
    kept = Kept()
    for number, url in enumerate(urls):
        with explained(url, ArchiveUnreadable):
            import fsspec

            if not url.endswith(SUFFIX):
                raise ValueError(f"its name must end in {SUFFIX}")
            with fsspec.open(url, "rb") as file:
                kept.keep(f"{number:06}", _wanted(files.read(file), wanted, span))
    return kept


def _wanted(rows: Iterator[Row], wanted: Filter, span: Span) -> Iterator[tuple[Row, bool]]:
    for number, row in enumerate(rows, 1):
        one = dict(zip(COLUMNS, row, strict=True))
        if is_wanted(one, wanted, span):
            yield row, _is_task(one, number)


def _is_task(one: dict[str, Any], number: int) -> bool:
    """Whether a row is a stored task. Raises `ValueError` if no export wrote it."""
    lacking = [name for name in NEEDED if one[name] is None]
    bad = [name for name in TEXTS if one[name] is not None and not is_text(one[name])]
    if lacking or bad:
        raise ValueError(f"row {number} has no {' and no '.join(lacking + bad)}")
    UUID(one["id"])
    headers = json.loads(one["headers"])
    return isinstance(headers, dict) and TASK_HEADER in headers


class Kept(Source):
    """Messages that were read from files. A file is in no order, and may be larger than the memory, so a temporary
    database keeps and sorts them."""

    def __init__(self) -> None:
        self._kept = sqlite3.connect("")  # a file that has no name, and goes with the connection
        self._kept.execute(f"CREATE TABLE kept (part, {NAMES}, task, size, PRIMARY KEY (part, seq, id)) WITHOUT ROWID")

    def keep(self, part: str, rows: Iterable[tuple[Row, bool]]) -> None:
        """Keep the rows of a part. With each row: whether it is a stored task."""
        self._kept.executemany(
            f"INSERT OR IGNORE INTO kept VALUES ({', '.join('?' * (len(COLUMNS) + 3))})",  # noqa: S608 - of constants
            ((part, *row, task, len(row[PAYLOAD])) for row, task in rows),
        )

    def kinds(self, after: Place) -> Iterator[Any]:
        counted = self._kept.execute(
            "SELECT destination, event_type, state, task, count(*), min(id) FROM kept WHERE (part, seq, id) > (?, ?, ?)"
            " GROUP BY 1, 2, 3, 4",
            after,
        )
        return (Counted(to, type, state, bool(task), count, UUID(id)) for to, type, state, task, count, id in counted)

    def lots(self, after: Place, size: int) -> Iterator[tuple[Place, Sequence[Row]]]:
        found = self._kept.execute(
            f"SELECT part, seq, id, {NAMES}, size FROM kept"  # noqa: S608 - names of columns
            " WHERE (part, seq, id) > (?, ?, ?) ORDER BY part, seq, id",
            after,
        )
        for lot in in_lots(found, size):
            part, seq, id, *_ = lot[-1]
            yield Place(part, seq, id), [row for _, _, _, *row, _ in lot]


def is_wanted(row: dict[str, Any], wanted: Filter, span: Span) -> bool:
    """Whether a row of a file is wanted: the same rules as sql/find/parts/wanted.sql."""
    now = (datetime.now(UTC) - EPOCH) // MICROSECOND
    exact = {"destination": wanted.destination, "key": wanted.key, "last_error_code": wanted.code}
    since, until = ((time - EPOCH) // MICROSECOND for time in span)
    return (
        all(value is None or row[name] == value for name, value in exact.items())
        and (not wanted.states or row["state"] in wanted.states)
        and (wanted.event_type is None or _pattern(wanted.event_type).fullmatch(row["event_type"]) is not None)
        and (wanted.older_than is None or row["created_at"] <= now - wanted.older_than * 1e6)
        and (wanted.newer_than is None or row["created_at"] >= now - wanted.newer_than * 1e6)
        and since <= row["finished_at"] <= until
    )


def _pattern(text: str) -> re.Pattern[str]:
    first, *rest = ("".join("." if sign == "?" else re.escape(sign) for sign in part) for part in text.split("*"))
    # A part between two stars takes the first place where it fits, and no other: else many stars would take for ever.
    middle = "".join(f"(?>.*?{part})" for part in rest[:-1])
    return re.compile("".join((first, middle, *(f".*{part}" for part in rest[-1:]))), re.DOTALL)
