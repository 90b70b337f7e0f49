"""What the statements are made of."""

from __future__ import annotations

from itertools import chain
from typing import Any

from sqlalchemy import (
    JSON,
    Float,
    Interval,
    SmallInteger,
    Text,
    TextClause,
    Uuid,
    and_,
    any_,
    bindparam,
    cast,
    column,
    exists,
    extract,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, array
from sqlalchemy.sql import ColumnElement, FromClause, Select
from sqlalchemy.sql.selectable import TableValuedAlias

from outbox_tasks.database.schema import Tables, function
from outbox_tasks.errors import UnsupportedDialect

DIALECTS = ("postgresql",)
"""An allow-list: SQLAlchemy compiles SKIP LOCKED away without a word on some of the others."""

PRIORITIES = {"high": 1, "normal": 0, "low": -1}

SECOND = literal_column("interval '1 second'", Interval)


def check_dialect(name: str) -> None:
    """Raises `UnsupportedDialect` unless the statements are right for the dialect."""
    if name not in DIALECTS:
        raise UnsupportedDialect(dialect=name, supported=", ".join(DIALECTS))


def pending(m: FromClause) -> ColumnElement[bool]:
    """Written out, not a parameter: only then can every plan use the partial index."""
    return m.c.status == literal_column("'pending'")


def as_priority(number: int, name: str = "priority") -> ColumnElement[int]:
    """A priority, for a row of a table in the statement. Not VALUES: SQLAlchemy compiles it anew with each call."""
    return literal_column(f"{number}::smallint", SmallInteger).label(name)


def held(t: Tables, ticket: FromClause) -> list[ColumnElement[bool]]:
    """The fence: the row is still under this lease, at this attempt. Only pending rows have a lease.

    The status must not be named here: it would let the planner read the partial index from end to end when the
    table's statistics are old, instead of looking up each id.
    """
    m = t.messages
    return [
        probe(m.c.id, ticket.c.id),
        m.c.attempts == ticket.c.attempt,
        m.c.lease == bindparam("token", type_=Uuid),
    ]


def begun_once(t: Tables, ticket: FromClause) -> list[ColumnElement[bool]]:
    """The fence of a settle: as `held`, and it also holds where a crash of the server has undone the begin, which
    commits a moment later than it says. Nothing else leaves a lease and takes an attempt away."""
    m = t.messages
    undone = and_(m.c.attempts == ticket.c.attempt - 1, m.c.begun == false())
    lookup, _, lease = held(t, ticket)
    return [lookup, or_(m.c.attempts == ticket.c.attempt, undone), lease]


def never_settled(attempt: ColumnElement[Any], by: ColumnElement[Any]) -> ColumnElement[str]:
    """What is said of a message whose send may have reached its destination, and nobody knows."""
    said = (
        "attempt %s was begun by %s and never settled: it died or lost its lease; the message may have been delivered"
    )
    return func.format(said, attempt, by)


def bound_for(t: Tables) -> ColumnElement[bool]:
    """Whether a message is one of the destination that a bundle says it is for: bundles come from the broker, and who
    can write there must not send one destination's messages to another. Parameter: target (the destination)."""
    return t.messages.c.destination == bindparam("target", type_=Text)


def probe(indexed: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[bool]:
    """`indexed = value`, in a form that a plan can only meet by looking up each value in the index.

    As a plain equality it could also be met by reading the whole index in order, which looks cheap while the table
    is small, and a prepared plan outlives that.
    """
    return indexed == any_(array([value]))


def json_rows(name: str, /, **columns: Any) -> TableValuedAlias:
    """Rows as a table, from one parameter: `json_to_recordset(:ticket) AS ticket(id UUID, attempt INTEGER)`.

    One text is cheaper to make and to read than an array a column, and other databases can do it too.
    """
    shape = [column(column_name, kind) for column_name, kind in columns.items()]
    rows = func.json_to_recordset(cast(bindparam(name, type_=Text), JSON))
    return rows.table_valued(*shape, name=name).render_derived(name=name, with_types=True)


def once(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """A value that is worked out once for a whole statement, and not for each of its rows.

    A server may stand still between two rows: by a clock that is read for each, one part of a bundle would outlive
    the other.
    """
    return select(value).scalar_subquery()


def seconds(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Float) * SECOND


def elapsed(since: ColumnElement[Any], now: ColumnElement[Any]) -> ColumnElement[float]:
    """Seconds since a time, at most some centuries: anybody can write an infinite one, and of that PostgreSQL has no
    difference before version 17."""
    apart = extract("epoch", now) - extract("epoch", since)
    return cast(func.greatest(func.least(apart, literal_column("1e10")), literal_column("-1e10")), Float)


def noted(m: FromClause, what: Any, **facts: Any) -> ColumnElement[Any]:
    """The history of a row of `m` with one entry more: what happened just now, and the facts of it."""
    schema = getattr(m, "schema", None)
    entry = func.jsonb_build_object("at", func.clock_timestamp(), "what", what, *chain.from_iterable(facts.items()))
    return cast(function(schema, "outbox_noted")(m.c.history, func.jsonb_strip_nulls(entry)), JSONB)


def brief(error: ColumnElement[Any]) -> ColumnElement[Any]:
    """So much of an error as one entry of a history holds."""
    return func.left(error, 300)


def commit_soon() -> ColumnElement[bool]:
    """Let this commit reach the disk a moment later: losing it in a crash only repeats a delivery.

    A setting of the transaction made inside its only statement costs no round trip of its own.
    """
    setting = func.set_config("synchronous_commit", "off", True, type_=Text)
    return select(setting).scalar_subquery() == "off"


def blocked(t: Tables) -> ColumnElement[bool]:
    """Whether a destination is paused, or left alone but for the probe under another lease.

    Parameters: target (a destination); token. A subquery of its own, which is run once for a statement.
    """
    d = t.destinations
    left_alone = d.c.opened_at.is_not(None) & d.c.probe.is_distinct_from(bindparam("token", type_=Uuid))
    return exists(
        select(d.c.name).where(d.c.name == bindparam("target", type_=Text), or_(d.c.paused_at.is_not(None), left_alone))
    )


def alone(schema: str | None, what: str) -> Select[Any]:
    """Whether this transaction is now the only one that does `what` in this outbox, until it ends.

    If the connection is lost without a word, the server notices within a minute.
    """
    settings = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
    place = literal(schema) if schema else func.current_schema()
    lock = func.pg_try_advisory_xact_lock(func.hashtextextended(literal(f"outbox {what} ") + place, 0))
    said = [func.set_config(name, value, literal_column("true")) for name, value in settings.items()]
    # From PostgreSQL 17 on a role may have a limit for transactions; this one is to stay.
    limits = table("pg_settings", column("name", Text), schema="pg_catalog")
    unlimited = select(func.set_config(limits.c.name, literal("0"), literal_column("true"))).where(
        limits.c.name == literal("transaction_timeout")
    )
    return select(lock, *said, unlimited.scalar_subquery())


def unhurried() -> Select[Any]:
    """Let the statements of this transaction run for longer. Parameter: limit (as `statement_timeout` takes it)."""
    return select(func.set_config("statement_timeout", bindparam("limit", type_=Text), True, type_=Text))


def idle() -> TextClause:
    """The transaction may stay as it is for as long as it likes. As a command that sees no rows it also ends what the
    statement before it saw, which would keep vacuum from removing anything newer."""
    return text("SET LOCAL idle_in_transaction_session_timeout = 0")
