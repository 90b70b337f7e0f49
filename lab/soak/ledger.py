"""What the application knows: a table that it writes in the same transactions as its messages, and notes in files.

The table says what was committed, also if the commit's answer was cut off. The files say which commits were answered,
and what was taken back. Nothing here goes through the outbox.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    MetaData,
    Table,
    Text,
    Uuid,
    func,
    select,
)

COMMITTED, WITHDRAWN = "committed", "withdrawn"
LINE = 54
"""Bytes of a note: the time, the id, and the end of the line."""


class Written(NamedTuple):
    """A message of a committed transaction."""

    id: str
    way: str
    """How the application wrote it."""
    at: float
    """When it wrote it: Unix time."""
    delay: float
    """Seconds for which it wanted it held back."""
    hopeless: bool
    """Whether no destination can ever take it."""


def table(schema: str | None) -> Table:
    """The application's own table."""
    return Table(
        "soak_written",
        MetaData(schema=schema),
        Column("id", Uuid, primary_key=True),
        Column("way", Text, nullable=False),
        Column("at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
        Column("delay", Float, nullable=False, server_default="0"),
        Column("hopeless", Boolean, nullable=False, server_default="false"),
    )


def written(connection: Connection, schema: str | None) -> list[Written]:
    """All that was committed."""
    t = table(schema)
    at = func.extract("epoch", t.c.at)
    rows = connection.execute(select(t.c.id, t.c.way, at, t.c.delay, t.c.hopeless))
    return [Written(str(id), way, float(at), delay, hopeless) for id, way, at, delay, hopeless in rows]


class Notes:
    """The files of one process of the application. Each call is one write."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._files = {
            name: os.open(directory / f"{name}-{os.getpid()}.txt", flags, 0o600) for name in (COMMITTED, WITHDRAWN)
        }

    def committed(self, ids: Iterable[str]) -> None:
        """The database has said that these are committed."""
        self._write(COMMITTED, ids)

    def withdrawn(self, ids: Iterable[str]) -> None:
        """These will be rolled back: written before the rollback."""
        self._write(WITHDRAWN, ids)

    def _write(self, name: str, ids: Iterable[str]) -> None:
        os.write(self._files[name], "".join(f"{time.time():16.5f} {id}\n" for id in ids).encode())


def noted(directory: Path, name: str) -> Iterator[tuple[str, float]]:
    """The ids of one kind of note, and when each was written."""
    for file in sorted(directory.glob(f"{name}-*.txt")):
        for line in file.read_text().splitlines():
            at, _, id = line.strip().partition(" ")
            if len(id) == 36:  # the last one may have been cut off
                yield id, float(at)


def counted(directory: Path, name: str) -> int:
    """How many notes of one kind there are."""
    return sum(file.stat().st_size for file in directory.glob(f"{name}-*.txt")) // LINE
