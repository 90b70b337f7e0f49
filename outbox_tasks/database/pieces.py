"""Expressions that several statements share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    Interval,
    Text,
    TextClause,
    bindparam,
    cast,
    column,
    func,
    literal,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.sql import ColumnElement, Select
from sqlalchemy.sql.selectable import TableValuedAlias

from outbox_tasks.errors import UnsupportedDialect

DIALECTS = ("postgresql",)
"""An allow-list: for some other dialects SQLAlchemy silently leaves SKIP LOCKED out."""

PRIORITIES = {"high": 1, "normal": 0, "low": -1}

SECOND = literal_column("interval '1 second'", Interval)


def check_dialect(name: str, dialects: Iterable[str] = DIALECTS) -> None:
    """Raises `UnsupportedDialect` if the statements don't fit the dialect."""
    if name not in dialects:
        raise UnsupportedDialect(dialect=name, supported=", ".join(dialects))


def json_rows(name: str, /, **columns: Any) -> TableValuedAlias:
    """Rows as a table, from one parameter: `json_to_recordset(:ticket) AS ticket(id UUID, attempt INTEGER)`.

    One text is cheaper to make and to read than an array for each column.
    """
    shape = [column(column_name, kind) for column_name, kind in columns.items()]
    rows = func.json_to_recordset(cast(bindparam(name, type_=Text), JSON))
    return rows.table_valued(*shape, name=name).render_derived(name=name, with_types=True)


def seconds(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Float) * SECOND


def timeline() -> ColumnElement[str]:
    """Which database this is, and on which timeline: another one after a standby has taken over, or a backup was
    restored."""
    control = func.pg_control_system().table_valued(column("system_identifier", BigInteger))
    system = select(cast(control.c.system_identifier, Text)).scalar_subquery()
    return func.concat(system, "/", func.left(func.pg_walfile_name(func.pg_current_wal_lsn()), 8))


def alone(schema: str | None, what: str) -> Select[Any]:
    """Whether this transaction is now the only one that does `what` in this outbox, until it ends.

    If the connection is lost silently, the server notices within a minute.
    """
    settings = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
    place = literal(schema) if schema else func.current_schema()
    lock = func.pg_try_advisory_xact_lock(func.hashtextextended(literal(f"outbox {what} ") + place, 0))
    said = [func.set_config(name, value, literal_column("true")) for name, value in settings.items()]
    # From PostgreSQL 17 on, a role may have a time limit for transactions. This one must stay.
    limits = table("pg_settings", column("name", Text), schema="pg_catalog")
    unlimited = select(func.set_config(limits.c.name, literal("0"), literal_column("true"))).where(
        limits.c.name == literal("transaction_timeout")
    )
    return select(lock, *said, unlimited.scalar_subquery())


def unhurried() -> Select[Any]:
    """Let the statements of this transaction run for longer. Parameter: limit (as `statement_timeout` takes it)."""
    return select(func.set_config("statement_timeout", bindparam("limit", type_=Text), True, type_=Text))


def idle() -> TextClause:
    """Let the transaction stay idle without a limit. This command needs no snapshot, so it also gives up the snapshot
    of the statement before it, which would hold back vacuum."""
    return text("SET LOCAL idle_in_transaction_session_timeout = 0")
