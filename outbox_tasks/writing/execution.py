"""Executes the verbs of `outbox_tasks/database/sql/` in the application's transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Connection

from outbox_tasks.database import sql
from outbox_tasks.errors import Autocommit
from outbox_tasks.writing.internals import is_heard, raise_as_sqlalchemy

DJANGO = "pyformat"
"""The style of parameters that Django takes for each database."""


class Verb(NamedTuple):
    """A file of `database/sql/`, and the schema of the tables; None: those that the connection finds. Where it runs in
    all dialects with feeds, `feed` is the name of the file that each folder in `feeds/sql/` has for it."""

    file: str
    schema: str | None
    feed: str | None = None

    def file_for(self, dialect: str) -> str:
        """The file for a dialect. Raises `UnsupportedDatabase`."""
        sql.check_dialect(dialect, sql.FEEDS if self.feed else sql.DIALECTS)
        return self.file if dialect in sql.DIALECTS else f"feeds/{sql.FEEDS[dialect]}/{self.feed}"


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`."""

    alias: str
    vendor: str
    in_atomic_block: bool

    def cursor(self) -> Any: ...
    def on_commit(self, func: Any) -> None: ...


AnyConnection: TypeAlias = Connection | DjangoConnection


def execute(connection: AnyConnection, verb: Verb, parameters: Mapping[str, Any], event_type: str) -> int:
    """Execute in the connection's transaction; returns how many rows it returned or changed. Its parameters must be
    values that every driver can pass: text, bytes, float, bool and None. Raises `Autocommit` or
    `UnsupportedDatabase`."""
    if not isinstance(connection, Connection):
        with connection.cursor() as cursor:
            cursor.execute(*_for_driver(verb, connection.vendor, DJANGO, parameters))
            return int(cursor.rowcount)
    verb = _checked(connection, verb, event_type)
    text, values = _for_driver(verb, connection.dialect.name, connection.dialect.paramstyle, parameters)
    if not is_heard(connection):
        return _by_the_driver(connection, text, values)
    with connection.exec_driver_sql(text, values) as result:
        return result.rowcount


def execute_each(connection: AnyConnection, verb: Verb, rows: Sequence[Mapping[str, Any]], event_type: str) -> None:
    """Execute with each of these parameters, in their order. Raises as `execute` does."""
    if not isinstance(connection, Connection):
        text, names = _statement(verb, connection.vendor, DJANGO)
        with connection.cursor() as cursor:
            cursor.executemany(text, [tuple(row[name] for name in names) for row in rows])
        return
    verb = _checked(connection, verb, event_type)
    text, names = _statement(verb, connection.dialect.name, connection.dialect.paramstyle)
    connection.exec_driver_sql(text, [tuple(row[name] for name in names) for row in rows]).close()


def _checked(connection: Connection, verb: Verb, event_type: str) -> Verb:
    """The verb with the schema that this connection has for it."""
    verb.file_for(connection.dialect.name)
    if _commits_each_statement(connection.connection):
        raise Autocommit(subject=event_type)
    if schemas := connection.get_execution_options().get("schema_translate_map"):
        return verb._replace(schema=schemas.get(verb.schema, verb.schema))
    return verb


def _commits_each_statement(pooled: Any) -> bool:
    """Whether a driver's connection is in autocommit. SQLAlchemy knows it only since 2.0.43."""
    driven = pooled.driver_connection
    if hasattr(driven, "in_transaction") and hasattr(driven, "isolation_level"):  # SQLite
        # With some settings the driver begins no transaction by itself, but the application may have begun one.
        autocommit = getattr(driven, "autocommit", -1)  # since Python 3.12; -1: isolation_level decides
        begins_none = autocommit is True or (autocommit is not False and driven.isolation_level is None)
        return begins_none and not driven.in_transaction
    autocommit = getattr(pooled.dbapi_connection, "autocommit", False)
    if callable(autocommit):  # in drivers for MySQL this is the method that sets it
        autocommit = getattr(driven, "get_autocommit", bool)()
    return autocommit is True


def read_in_django(connection: DjangoConnection, verb: Verb, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a verb, by column, as Django's connection sees them: also what its transaction has written."""
    with connection.cursor() as cursor:
        cursor.execute(*_for_driver(verb, connection.vendor, DJANGO, parameters))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _for_driver(verb: Verb, dialect: str, style: str, parameters: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """A statement and its parameters as a driver takes them. To let SQLAlchemy execute a statement of its own would
    take twice the time."""
    text, names = _statement(verb, dialect, style)
    return text, tuple([parameters[name] for name in names])


@cache
def _statement(verb: Verb, dialect: str, style: str) -> tuple[str, tuple[str, ...]]:
    statement = sql.statement(verb.file_for(dialect), verb.schema, style, sql.quote_of(dialect))
    return statement.text.decode(), statement.names


def _by_the_driver(connection: Connection, text: str, values: Any) -> int:
    """`exec_driver_sql` without its hooks and its result, which take a third of the CPU of a `publish`."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text, values)
        return int(cursor.rowcount)
    except BaseException as error:
        raise_as_sqlalchemy(connection, error, text, values, cursor)
    finally:
        cursor.close()
