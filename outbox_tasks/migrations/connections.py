"""Runs the SQL of migrations on a connection of SQLAlchemy's or Django's, in its transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

from sqlalchemy import Connection, text
from sqlalchemy.util import await_only

from outbox_tasks.database.sql import DIALECTS, check_dialect


class DjangoConnection(Protocol):
    """One of Django's database connections."""

    vendor: str

    def cursor(self) -> Any: ...


class Runner(Protocol):
    def scalar(self, sql: str, **values: str) -> Any: ...

    def script(self, sql: str) -> None: ...


def runner(connection: Connection | DjangoConnection, dialects: Iterable[str] = DIALECTS) -> Runner:
    if isinstance(connection, Connection):
        check_dialect(connection.dialect.name, dialects)
        return _Alchemy(connection)
    check_dialect(connection.vendor, dialects)
    return _Django(connection)


class _Alchemy:
    """Runs SQL on a SQLAlchemy connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def scalar(self, sql: str, **values: str) -> Any:
        return self._connection.scalar(text(sql.replace("::text", "\\:\\:text")), values)

    def script(self, sql: str) -> None:
        """Without parameters, so that the driver takes several statements and leaves % alone."""
        if self._connection.dialect.driver == "asyncpg":  # whose cursors prepare every statement
            await_only(self._connection.connection.driver_connection.execute(sql))  # type: ignore[union-attr]
        else:
            self._connection.exec_driver_sql(sql, execution_options={"no_parameters": True})


class _Django:
    """Runs SQL on one of Django's connections."""

    def __init__(self, connection: DjangoConnection) -> None:
        self._connection = connection

    def scalar(self, sql: str, **values: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql), values)
            return cursor.fetchone()[0]

    def script(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
