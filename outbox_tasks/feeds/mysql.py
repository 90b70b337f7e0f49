"""A feed in MySQL or MariaDB. Its rows become visible out of the order of their numbers.

Nothing here waits for writers, or makes them wait: reads take no locks, and deletes lock only rows that are copied.
What is not committed yet is seen by dirty reads, at no cost for those who write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from sqlalchemy import URL

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.feeds.source import LOOK_BYTES, MESSAGE_BYTES, Row, Source

ROWS_A_READ = 200
"""Rows that are read at once: their messages may be large."""

ROWS_A_DELETE = 1000
"""Rows that one statement deletes: its locks are held for a short time."""

URL_OPTIONS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity", "unix_socket")
"""What a URL may say after its question mark: it goes to PyMySQL."""

NO_TABLE = 1146
"""The servers' code of the error that a table is missing."""

DIRTY, COMMITTED = "READ UNCOMMITTED", "READ COMMITTED"


class MySQLSource(Source):
    dialect: ClassVar[str] = "mysql"
    style: ClassVar[str] = "pyformat"

    def __init__(self, name: str, url: URL, schema: str | None, timeout: float) -> None:
        super().__init__(name, url, schema, timeout)
        rule = None
        if unknown := sorted(set(url.query) - {*URL_OPTIONS, "charset"}):
            rule = f"its option {unknown[0]} is unknown; it may have {', '.join(URL_OPTIONS)}"
        elif not (schema or url.database):
            rule = "it must name a database, as in mysql://user@host/database"
        if rule is not None:
            raise ConfigurationError(setting=f"feeds.{name}.url", value=str(url), rule=rule)
        self._checked = False

    def _connect(self) -> Any:
        import pymysql

        url, self._checked = self._url, False
        options: dict[str, Any] = {name: value for name, value in url.query.items() if name in URL_OPTIONS}
        for name in ("ssl_verify_cert", "ssl_verify_identity"):
            if name in options:
                options[name] = options[name].lower() in ("1", "true", "yes", "on")
        connection = pymysql.connect(
            host=url.host,
            port=url.port,
            user=url.username,
            password=url.password,
            database=url.database or self._schema,  # tables are named with their schema
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, round(self.timeout)),
            read_timeout=self.timeout,
            write_timeout=self.timeout,
            **options,
        )
        # PyMySQL gives up a connection that is silent for too long; the server should give up sooner, and say why.
        self._execute(connection, "SET SESSION innodb_lock_wait_timeout = %s", [max(1, round(self.timeout / 2))])
        self._read(connection, COMMITTED)
        return connection

    def _read(self, connection: Any, level: str) -> None:
        self._execute(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")

    def _look(self, connection: Any, most: int) -> list[Row]:
        self._check(connection)
        self._read(connection, DIRTY)
        high = self._rows(connection, "highest")[0][0]
        # a writer can choose any number, so the first look begins below all of them
        after, size = -(2**63), 0
        rows_found: list[Row] = []
        behind: set[str | None] = set()  # keys with a row that is not committed: their later rows wait
        while high is not None and after < high and len(rows_found) < most and size < LOOK_BYTES:
            self._read(connection, DIRTY)
            there = self._rows(connection, "all", after=after, high=high, most=ROWS_A_READ)
            self._read(connection, COMMITTED)
            last = there[-1][0] if len(there) == ROWS_A_READ else high
            read = self._rows(connection, "look", after=after, high=last, enough=LOOK_BYTES, largest=MESSAGE_BYTES)
            rows = {row[0]: Row(*row) for row in read}
            size += sum(row.size for row in rows.values())
            if size >= LOOK_BYTES and rows:  # there may be more, which was not read
                last = max(rows)
            keys = {number: row.key for number, row in rows.items()}
            keys |= {number: key for number, key in there if number <= last}
            for number in sorted(keys):
                key = keys[number]
                if number not in rows:
                    behind.add(key)
                elif key is None or key not in behind:
                    rows_found.append(rows[number])
            after = last
        self._read(connection, COMMITTED)
        return rows_found[:most]

    def _check(self, connection: Any) -> None:
        """Once a connection: whether rows are read and deleted here as they must be."""
        if self._checked:
            return
        version, read_only, engine = self._rows(connection, "check", schema_=self._schema)[0]
        if "TiDB" in version:  # it has no dirty reads, which show open rows
            raise self._trouble(f"it is {version}; a feed needs MySQL or MariaDB")
        if engine is not None and engine != "InnoDB":
            raise self._trouble(f"the table outbox_feed has the engine {engine}, and only InnoDB can roll back rows")
        if read_only:
            raise self._trouble("it is read-only, as replicas are")
        self._checked = True

    def _delete(self, connection: Any, rows: Sequence[tuple[int, str]]) -> None:
        for first in range(0, len(rows), ROWS_A_DELETE):
            self._rows(connection, "delete", rows=json.dumps(rows[first : first + ROWS_A_DELETE]))

    def _lacks_table(self, error: Exception) -> bool:
        return error.args[:1] == (NO_TABLE,)
