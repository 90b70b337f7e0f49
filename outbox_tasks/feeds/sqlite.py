"""A feed in an SQLite file. SQLite has one writer at a time, so rows are committed in the order of their numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from sqlalchemy import URL

from outbox_tasks.database import sql
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.feeds.source import LOOK_BYTES, MESSAGE_BYTES, Row, Source

ROWS_A_DELETE = 200
"""Rows that one transaction deletes: writers wait for it."""


class SQLiteSource(Source):
    dialect: ClassVar[str] = "sqlite"
    style: ClassVar[str] = sql.MARKED

    def __init__(self, name: str, url: URL, schema: str | None, timeout: float) -> None:
        super().__init__(name, url, schema, timeout)
        if url.database in (None, "", ":memory:"):
            rule = "it must name a file, as in sqlite:////path/of/the.db: no other process sees a database in memory"
            raise ConfigurationError(setting=f"feeds.{name}.url", value=str(url), rule=rule)
        self._path = Path(str(url.database)).absolute()
        self._identity: tuple[int, int] | None = None

    def init(self) -> str:
        """Also makes the file."""
        with closing(sqlite3.connect(self._path, timeout=self.timeout)) as made:
            made.execute("PRAGMA schema_version")
        return super().init()

    def _is_stale(self) -> bool:
        """Somebody who restores a backup may have put another file in the place of the open one."""
        return self._identity != self._file()

    def _file(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _connect(self) -> Any:
        self._identity = self._file()
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",  # never makes a file: a wrong path is an error
            uri=True,
            timeout=self.timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = _any_text
        if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            # Writers wait while rows are deleted, so a delete does not wait for the disk. If a power cut undoes a
            # delete, the next run deletes the rows again.
            connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _look(self, connection: Any, most: int) -> list[Row]:
        look = self._verb("look")
        rows: list[Row] = []
        size = 0
        values = look.values({"most": most, "largest": MESSAGE_BYTES})
        with closing(connection.execute(look.text.decode(), values)) as cursor:
            for number, id, key, bytes_, message in cursor:
                rows.append(Row(number, id, key, bytes_, message))
                size += rows[-1].size + len(rows[-1].id)
                if size > LOOK_BYTES:
                    break
        return rows

    def _delete(self, connection: Any, rows: Sequence[tuple[int, str]]) -> None:
        for first in range(0, len(rows), ROWS_A_DELETE):
            # A transaction that only becomes a writer later fails at once if somebody has written since it began.
            connection.execute("BEGIN IMMEDIATE")
            for number, id in rows[first : first + ROWS_A_DELETE]:
                self._rows(connection, "delete", number=number, id=id)
            connection.execute("COMMIT")

    def _statements(self) -> list[str]:
        return ["PRAGMA journal_mode = WAL", *super()._statements()]

    def _lacks_table(self, error: Exception) -> bool:
        return "no such table" in str(error)


def _any_text(value: bytes) -> str:
    """Anybody can write bytes that are no text, and one row must not make all others unreadable."""
    return value.decode(errors="replace")
