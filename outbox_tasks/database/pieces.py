"""Expressions that several statements share."""

from __future__ import annotations

from itertools import chain
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Float,
    Integer,
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
    false,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, array
from sqlalchemy.sql import ColumnElement, Delete, FromClause, Select
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert
from sqlalchemy.sql.selectable import TableValuedAlias

from outbox_tasks.database.schema import Tables, function
from outbox_tasks.errors import UnsupportedDialect

DIALECTS = ("postgresql",)
"""An allow-list: for some other dialects SQLAlchemy silently leaves SKIP LOCKED out."""

PRIORITIES = {"high": 1, "normal": 0, "low": -1}

SECOND = literal_column("interval '1 second'", Interval)


def check_dialect(name: str) -> None:
    """Raises `UnsupportedDialect` if the statements don't fit the dialect."""
    if name not in DIALECTS:
        raise UnsupportedDialect(dialect=name, supported=", ".join(DIALECTS))


def pending(m: FromClause) -> ColumnElement[bool]:
    """Written out, not a parameter: only then can every plan use the partial index."""
    return m.c.status == literal_column("'pending'")


def as_priority(number: int, name: str = "priority") -> ColumnElement[int]:
    """A priority, for a row of a table in the statement. Not VALUES: SQLAlchemy compiles it anew with each call."""
    return literal_column(f"{number}::smallint", SmallInteger).label(name)


def held(t: Tables, ticket: FromClause | None) -> list[ColumnElement[bool]]:
    """The fence: the row is still under this lease, at this attempt. Only pending rows have a lease.

    Without `ticket`, all messages are at the same attempt: see `attempt_of`. Don't name the status here: with old
    statistics of the table, the planner might then read the whole partial index instead of looking up each id.
    """
    m = t.messages
    if ticket is None:
        lookup = m.c.id == any_(cast(bindparam("ids", type_=Text), ARRAY(Uuid)))
    else:
        lookup = probe(m.c.id, ticket.c.id)
    return [lookup, m.c.attempts == attempt_of(ticket), m.c.lease == bindparam("token", type_=Uuid)]


def attempt_of(ticket: FromClause | None) -> ColumnElement[int]:
    """The attempt that a ticket is for. Most bundles have messages of one attempt only. Then the parameters are ids (an
    array) and attempt, and the server looks up all ids at once, which takes half as long."""
    return bindparam("attempt", type_=Integer) if ticket is None else ticket.c.attempt


def begun_once(t: Tables, ticket: FromClause | None) -> list[ColumnElement[bool]]:
    """The fence of a settle: as `held`, or a crash of the server has undone the begin, which does not wait for the
    disk. Nothing else takes an attempt away and leaves the lease."""
    m, attempt = t.messages, attempt_of(ticket)
    undone = and_(m.c.attempts == attempt - 1, m.c.begun == false())
    lookup, begun, lease = held(t, ticket)
    return [lookup, or_(begun, undone), lease]


def size(m: FromClause) -> ColumnElement[int]:
    """Bytes of the payload. PostgreSQL knows this without reading it."""
    return func.octet_length(m.c.payload, type_=Integer)


MOST_COUNTED = 1_000_000_000
"""Whoever inserts a row may write any count. One that can't be added to would stop every statement that meets it."""


def more(count: ColumnElement[int]) -> ColumnElement[int]:
    """One more."""
    return func.least(count, MOST_COUNTED) + 1


def fewer(count: ColumnElement[int]) -> ColumnElement[int]:
    """One fewer."""
    return func.greatest(count, -MOST_COUNTED) - 1


def never_settled(attempt: ColumnElement[Any], by: ColumnElement[Any]) -> ColumnElement[str]:
    """The error text of a message whose send began, and nobody knows how it ended."""
    said = (
        "attempt %s was begun by %s and never settled: it died or lost its lease; the message may have been delivered"
    )
    return func.format(said, attempt, by)


def bound_for(t: Tables) -> ColumnElement[bool]:
    """Whether a message is for the destination that its bundle names. Bundles come from the broker: somebody who can
    write there must not send one destination's messages to another. Parameter: target (the destination)."""
    return t.messages.c.destination == bindparam("target", type_=Text)


def probe(indexed: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[bool]:
    """`indexed = value`, written so that a plan can only look up each value in the index.

    For a plain equality a plan may also read the whole index in order. That is cheap while the table is small, but a
    prepared plan stays when the table grows.
    """
    return indexed == any_(array([value]))


def json_rows(name: str, /, **columns: Any) -> TableValuedAlias:
    """Rows as a table, from one parameter: `json_to_recordset(:ticket) AS ticket(id UUID, attempt INTEGER)`.

    One text is cheaper to make and to read than an array for each column.
    """
    shape = [column(column_name, kind) for column_name, kind in columns.items()]
    rows = func.json_to_recordset(cast(bindparam(name, type_=Text), JSON))
    return rows.table_valued(*shape, name=name).render_derived(name=name, with_types=True)


def once(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """A value that is computed once for the statement, not for each row.

    If the clock were read for each row, and the server paused between two rows, the leases of one bundle would end at
    different times.
    """
    return select(value).scalar_subquery()


def seconds(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Float) * SECOND


def elapsed(since: ColumnElement[Any], now: ColumnElement[Any]) -> ColumnElement[float]:
    """Seconds since a time, at most some centuries. Anybody can write an infinite time, and PostgreSQL before version
    17 can't subtract that."""
    apart = epoch(now) - epoch(since)
    return func.greatest(func.least(apart, literal_column("1e10")), literal_column("-1e10"), type_=Float)


def epoch(time: ColumnElement[Any]) -> ColumnElement[float]:
    """Seconds since 1970, as a float. EXTRACT would make an exact number of them, at ten times the cost."""
    return func.date_part(literal_column("'epoch'"), time, type_=Float)


def noted(m: FromClause, what: Any, **facts: Any) -> ColumnElement[Any]:
    """The history of a row of `m`, with one more entry: what happened just now, and its facts."""
    schema = getattr(m, "schema", None)
    entry = func.jsonb_build_object("at", func.clock_timestamp(), "what", what, *chain.from_iterable(facts.items()))
    return cast(function(schema, "outbox_noted")(m.c.history, func.jsonb_strip_nulls(entry)), JSONB)


def brief(error: ColumnElement[Any]) -> ColumnElement[Any]:
    """The part of an error that an entry of a history keeps."""
    return func.left(error, 300)


def commit_soon() -> ColumnElement[bool]:
    """Don't wait until this commit is on the disk. If a crash loses it, a delivery is repeated, and nothing worse.

    The setting is made inside the transaction's only statement, so it costs no round trip.
    """
    setting = func.set_config("synchronous_commit", "off", True, type_=Text)
    return select(setting).scalar_subquery() == "off"


def blocked(t: Tables) -> ColumnElement[bool]:
    """Whether a destination is paused, or its breaker is open and this lease is not the probe's.

    Parameters: target (the destination); token. A subquery, which runs once in a statement.
    """
    d = t.destinations
    circuit_open = d.c.opened_at.is_not(None) & d.c.probe.is_distinct_from(bindparam("token", type_=Uuid))
    return exists(
        select(d.c.name).where(
            d.c.name == bindparam("target", type_=Text), or_(d.c.paused_at.is_not(None), circuit_open)
        )
    )


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


def finished(
    t: Tables,
    gone: Delete,
    said: FromClause | None,
    attempts: ColumnElement[int],
    *,
    archive: bool,
    history: ColumnElement[Any] | None = None,
) -> ReturningInsert[Any] | ReturningDelete[Any]:
    """Move the rows that `gone` deletes to the archive; returns their ids. `said` has of each: state (null: sent), code
    and error; None: all were sent. `history`: if it changes."""
    m, a = t.messages, t.archive
    if not archive:
        return gone.returning(cast(m.c.id, Text).label("id"))
    kept = [c.name for c in a.c if c.name in m.c]
    state: ColumnElement[str] = literal("sent")
    changed = {"attempts": attempts}
    if said is not None:
        state = func.coalesce(said.c.state, state)
        changed["last_error_code"] = func.coalesce(said.c.code, m.c.last_error_code)
        changed["last_error"] = func.coalesce(said.c.error, m.c.last_error)
    if history is not None:
        changed["history"] = history
    columns = (changed[name].label(name) if name in changed else m.c[name] for name in kept)
    moved = gone.returning(*columns, state.label("state")).cte("moved")
    done = select(*(moved.c[name] for name in kept), moved.c.state, func.clock_timestamp())
    return insert(a).from_select([*kept, "state", "finished_at"], done).returning(cast(a.c.id, Text).label("id"))
