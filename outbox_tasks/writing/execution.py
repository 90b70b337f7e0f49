"""Executes the verbs of `outbox_tasks/sql/` in the application's transactions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Connection

from outbox_tasks import sql
from outbox_tasks.database.pieces import check_dialect
from outbox_tasks.errors import NotInTransaction
from outbox_tasks.internals import is_heard, raise_as_sqlalchemy

DJANGO = "pyformat"
"""The style of parameters that psycopg 2 and 3 take, whichever Django uses."""


class Verb(NamedTuple):
    """A file of `outbox_tasks/sql/`, and the schema of the tables; None: those that the connection finds."""

    file: str
    schema: str | None


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`."""

    vendor: str
    in_atomic_block: bool

    def cursor(self) -> Any: ...
    def on_commit(self, func: Any) -> None: ...


AnyConnection: TypeAlias = Connection | DjangoConnection


def execute(connection: AnyConnection, verb: Verb, parameters: Mapping[str, Any], event_type: str) -> int:
    """Execute in the connection's transaction; returns how many rows it returned or changed. Its parameters must be
    values that every driver can pass: text, bytes, float, bool and None. Raises `NotInTransaction` or
    `UnsupportedDialect`."""
    if not isinstance(connection, Connection):
        with connection.cursor() as cursor:
            cursor.execute(*_for_driver(verb, DJANGO, parameters))
            return int(cursor.rowcount)
    check_dialect(connection.dialect.name)
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise NotInTransaction(event_type=event_type)  # each statement would commit by itself
    if schemas := connection.get_execution_options().get("schema_translate_map"):
        verb = Verb(verb.file, schemas.get(verb.schema, verb.schema))
    text, given = _for_driver(verb, connection.dialect.paramstyle, parameters)
    if not is_heard(connection) and not _has_failed(connection):
        return _by_the_driver(connection, text, given)
    with connection.exec_driver_sql(text, given) as result:
        return result.rowcount


def read_in_django(connection: DjangoConnection, verb: Verb, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a verb, by column, as Django's connection sees them: also what its transaction has written."""
    check_dialect(connection.vendor)
    with connection.cursor() as cursor:
        cursor.execute(*_for_driver(verb, DJANGO, parameters))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _for_driver(verb: Verb, style: str, parameters: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """A statement and its parameters as a driver takes them. To let SQLAlchemy execute a statement of its own would
    take twice the time."""
    text, names = _said(verb, style)
    return text, tuple([parameters[name] for name in names])


@cache
def _said(verb: Verb, style: str) -> tuple[str, tuple[str, ...]]:
    statement = sql.statement(verb.file, verb.schema, style)
    return statement.text.decode(), statement.names


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
