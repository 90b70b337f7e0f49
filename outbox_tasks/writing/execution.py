"""Executes statements in the application's transactions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from sqlalchemy import Connection, Dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql import Executable

from outbox_tasks.database.compiled import as_text
from outbox_tasks.database.pieces import check_dialect
from outbox_tasks.errors import NotInTransaction
from outbox_tasks.internals import is_heard, raise_as_sqlalchemy

DJANGO = PGDialect_psycopg()  # type: ignore[no-untyped-call]
"""The SQL for psycopg 2 and 3, whichever Django uses."""


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`."""

    vendor: str
    in_atomic_block: bool

    def cursor(self) -> Any: ...
    def on_commit(self, func: Any) -> None: ...


AnyConnection: TypeAlias = Connection | DjangoConnection


def execute(connection: AnyConnection, statement: Executable, parameters: dict[str, Any], event_type: str) -> int:
    """Execute in the connection's transaction; returns how many rows it changed. Raises `NotInTransaction` or
    `UnsupportedDialect`."""
    if not isinstance(connection, Connection):
        with connection.cursor() as cursor:
            cursor.execute(*_for_driver(statement, DJANGO, parameters))
            return int(cursor.rowcount)
    check_dialect(connection.dialect.name)
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise NotInTransaction(event_type=event_type)  # each statement would commit by itself
    if "schema_translate_map" in connection.get_execution_options():  # SQLAlchemy applies it as it executes
        with connection.execute(statement, parameters) as result:
            return result.rowcount
    text, given = _for_driver(statement, connection.dialect, parameters)
    if not is_heard(connection) and not _has_failed(connection):
        return _by_the_driver(connection, text, given)
    with connection.exec_driver_sql(text, given) as result:
        return result.rowcount


def read_in_django(
    connection: DjangoConnection, statement: Executable, parameters: dict[str, Any]
) -> list[dict[str, Any]]:
    """The rows of a statement, by column, as Django's connection sees them: also what its transaction has written."""
    check_dialect(connection.vendor)
    with connection.cursor() as cursor:
        cursor.execute(*_for_driver(statement, DJANGO, parameters))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _for_driver(statement: Executable, dialect: Dialect, parameters: dict[str, Any]) -> tuple[str, Any]:
    """A statement and its parameters as a driver takes them. To let SQLAlchemy execute the statement itself would take
    twice the time. Its parameters must be values that every driver can pass: text, bytes, float and bool."""
    text, names, constants = _as_text(statement, dialect)
    given = {**constants, **parameters}
    return text, given if names is None else tuple(given[name] for name in names)


_as_text = lru_cache(as_text)


def _has_failed(connection: Connection) -> bool:
    """Whether its transaction or savepoint has failed: SQLAlchemy says how."""
    opened = connection.get_transaction(), connection.get_nested_transaction()
    return any(transaction is not None and not transaction.is_active for transaction in opened)


def _by_the_driver(connection: Connection, text: str, given: Any) -> int:
    """`exec_driver_sql` without its hooks and its result, which cost more than the driver's own work."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text, given)
        return int(cursor.rowcount)
    except BaseException as error:
        raise_as_sqlalchemy(connection, error, text, given, cursor)
    finally:
        cursor.close()
