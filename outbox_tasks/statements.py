"""Every SQL statement of the pipe, as pure functions of the tables. `tests/golden/` shows the SQL they become.

Each statement is one round trip and its own transaction. Two clocks, both the database's: a lease is granted
from `clock_timestamp()`, since `now()` is already late after a wait for a lock; what is due is compared with
`now()`, which alone can be an index condition.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    Boolean,
    DateTime,
    Float,
    Integer,
    Interval,
    Table,
    Text,
    Uuid,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    extract,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, array
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.sql import ColumnElement, Delete, Executable, FromClause, Insert, Select, Update
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert
from sqlalchemy.sql.selectable import TableValuedAlias

from outbox_tasks.errors import UnsupportedDialect
from outbox_tasks.schema import DEAD, PENDING, Tables

DIALECTS = ("postgresql",)
"""An allow-list: SQLAlchemy compiles SKIP LOCKED away without a word on some of the others."""

SECOND = literal_column("interval '1 second'", Interval)


def check_dialect(name: str) -> None:
    """Raises `UnsupportedDialect` unless the statements are right for the dialect."""
    if name not in DIALECTS:
        raise UnsupportedDialect(dialect=name, supported=", ".join(DIALECTS))


ROW: dict[str, Any] = {
    "id": Uuid,
    "event_type": Text,
    "aggregate_type": Text,
    "aggregate_id": Text,
    "destination": Text,
    "key": Text,
    "text": Text,
    "data": Text,
    "content_type": Text,
    "headers": JSONB,
    "deliver_at": DateTime(True),
    "delay": Float,
}
"""A row to be written: the payload as text or, in base64, as data; due at deliver_at or after delay seconds."""


def publish(t: Tables) -> Insert:
    """Messages, due from now on or later. Parameter: row (JSON rows as in `ROW`).

    One text parameter, because applications write through drivers that agree on little else.
    """
    row = _rows("row", **ROW)
    values = _written(row)
    return insert(t.messages).from_select(list(values), select(*values.values()).select_from(row))


def publish_once(schema: str | None) -> Select[Any]:
    """The same for messages whose ids the application chose: one that is there already is not written again.

    Fails with SQLSTATE 23505 if an id belongs to a message with other content.
    """
    row = _rows("row", **ROW)
    values = _written(row)
    names = ["event_type", "payload", "key", "destination", "headers", "locked_until", "id", "content_type",
             "aggregate_type", "aggregate_id"]  # fmt: skip
    write = getattr(func, schema).outbox_publish if schema else func.outbox_publish
    return select(write(*(values[name] for name in names))).select_from(row)


def _written(row: TableValuedAlias) -> dict[str, ColumnElement[Any]]:
    same = ("id", "event_type", "aggregate_type", "aggregate_id", "destination", "key", "content_type")
    return {
        **{name: row.c[name] for name in same},
        "payload": func.coalesce(
            func.convert_to(row.c.text, literal_column("'UTF8'")), func.decode(row.c.data, literal_column("'base64'"))
        ),
        "headers": func.coalesce(row.c.headers, cast(literal_column("'{}'"), JSONB)),
        "locked_until": func.coalesce(
            row.c.deliver_at, func.clock_timestamp() + func.coalesce(row.c.delay, literal_column("0")) * SECOND
        ),
    }


def mark(t: Tables) -> ReturningInsert[Any]:
    """Remember that a consumer has taken a message: one row if it is the first time, none if not.

    Waits for another transaction that is about to mark the same. Parameters: consumer, message.
    """
    marked = postgresql_insert(t.inbox).values(consumer=bindparam("consumer"), message_id=bindparam("message"))
    # Without RETURNING, SQLAlchemy does not keep how many rows an INSERT has made.
    return marked.on_conflict_do_nothing().returning(t.inbox.c.message_id)


def forget(t: Tables) -> Delete:
    """Forget the oldest marks. Parameters: keep (seconds), size (rows at most).

    They are deleted by their place in the table, which no plan can miss and which costs a sixth of a look-up by key.
    They are locked, so they stay there.
    """
    past = t.inbox.alias("past")
    places: Select[Any] = (
        select(literal_column("past.ctid"))
        .select_from(past)
        .where(past.c.received_at < func.now() - _seconds("keep"))
        .order_by(past.c.received_at)
        .limit(bindparam("size", type_=Integer))
        .with_for_update(skip_locked=True)
    )
    return delete(t.inbox).where(literal_column("outbox_inbox.ctid") == any_(func.array(places.scalar_subquery())))


def claim(t: Tables) -> Update:
    """Lease what is due: of each destination at most its share, the longest due first.

    A row whose lease ran out is marked with the cause, so that a repeated delivery can be traced to it. One that
    has no attempts left becomes a dead letter here. Parameters: share (JSON rows of destination,
    size and ceiling of attempts); token (the new lease), holder, hold (seconds).
    """
    m = t.messages
    share = _rows("share", destination=Text, size=Integer, ceiling=Integer)
    due = (
        select(m.c.id, m.c.attempts, m.c.lease, m.c.begun, m.c.locked_by, m.c.last_error_code)
        .where(_pending(m), m.c.destination == share.c.destination, m.c.locked_until <= func.now())
        .order_by(m.c.locked_until)
        .limit(share.c.size)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )
    picked = select(due, share.c.ceiling).select_from(share.join(due, true())).cte("picked")
    unsettled = picked.c.begun
    exhausted = picked.c.attempts >= picked.c.ceiling
    return (
        update(m)
        .where(_probe(m.c.id, picked.c.id))
        .values(
            lease=case((exhausted, null()), else_=bindparam("token", type_=Uuid)),
            locked_by=bindparam("holder", type_=Text),
            locked_until=func.clock_timestamp() + _seconds("hold"),
            begun=false(),
            status=case((exhausted, literal(DEAD)), else_=literal(PENDING)),
            dead_at=case((exhausted, func.clock_timestamp())),
            last_error_code=case(
                (unsettled, "unsettled"),
                (exhausted, func.coalesce(m.c.last_error_code, "attempts_exhausted")),
                (picked.c.lease.is_not(None), func.coalesce(m.c.last_error_code, "lease_expired")),
                else_=m.c.last_error_code,
            ),
            last_error=case(
                (
                    unsettled,
                    func.format(
                        "attempt %s was begun by %s and never settled: it died or lost its lease; "
                        "the message may have been delivered",
                        picked.c.attempts,
                        picked.c.locked_by,
                    ),
                ),
                (
                    picked.c.lease.is_not(None),
                    func.coalesce(
                        m.c.last_error,
                        func.format("claimed by %s, and the lease ran out before it was begun", picked.c.locked_by),
                    ),
                ),
                else_=m.c.last_error,
            ),
        )
        .returning(
            m.c.seq,
            cast(m.c.id, Text).label("id"),
            m.c.destination,
            m.c.event_type,
            m.c.attempts,
            m.c.status,
            # Its last send may have killed its worker: let it take nobody with it.
            or_(unsettled, func.coalesce(picked.c.last_error_code == "unsettled", false())).label("alone"),
        )
    )


def bury_unroutable(t: Tables) -> Update:
    """Make dead letters of what is due for destinations that are not configured. Parameter: known (array).

    Finds the destinations by hopping along the index, one probe each, not by reading the rows.
    """
    m = t.messages
    first = select(m.c.destination).where(_pending(m)).order_by(m.c.destination).limit(1)
    found = select(first.scalar_subquery().label("destination")).cte("found", recursive=True)
    step = (
        select(m.c.destination)
        .where(_pending(m), m.c.destination > found.c.destination)
        .order_by(m.c.destination)
        .limit(1)
        .correlate(found)
    )
    found = found.union_all(select(step.scalar_subquery()).where(found.c.destination.is_not(None)))
    unknown = (
        select(found.c.destination)
        .where(found.c.destination != func.all_(bindparam("known", type_=ARRAY(Text))))
        .limit(100)
        .subquery("unknown")
    )
    due = (
        select(m.c.id)
        .where(_pending(m), m.c.destination == unknown.c.destination, m.c.locked_until <= func.now())
        .order_by(m.c.locked_until)
        .limit(100)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )
    picked = select(due.c.id).select_from(unknown.join(due, true())).cte("picked")
    return (
        update(m)
        .where(_probe(m.c.id, picked.c.id))
        .values(
            status=DEAD,
            dead_at=func.clock_timestamp(),
            lease=null(),
            last_error_code="unknown_destination",
            last_error=func.format(
                "no destination %s is configured", func.quote_literal(func.left(m.c.destination, 100))
            ),
        )
        .returning(m.c.id)
    )


def begin(t: Tables) -> Update:
    """The compare-and-set before a send: counts the attempt and returns the message, if it is still ours.

    Parameters: ticket (JSON rows of id and attempt); token, holder, hold (seconds: granted to the send at least).
    """
    m = t.messages
    ticket = _rows("ticket", id=Uuid, attempt=Integer)
    return (
        update(m)
        .where(*_held(t, ticket), m.c.locked_until > func.clock_timestamp(), _commit_soon())
        .values(
            attempts=m.c.attempts + 1,
            begun=true(),
            locked_by=bindparam("holder", type_=Text),
            locked_until=func.greatest(m.c.locked_until, func.clock_timestamp() + _seconds("hold")),
        )
        .returning(
            cast(m.c.id, Text).label("id"),
            m.c.event_type,
            m.c.destination,
            m.c.key,
            m.c.payload,
            m.c.content_type,
            # Mostly empty, and then not worth parsing. As text, like the time as a number: rows are written by
            # anybody, and one that the driver can't read would take the whole answer with it.
            cast(func.nullif(m.c.headers, cast(literal_column("'{}'"), JSONB)), Text).label("headers"),
            m.c.aggregate_type,
            m.c.aggregate_id,
            cast(extract("epoch", m.c.created_at), Float).label("created_at"),
            m.c.attempts,
        )
    )


def settle_done(t: Tables, *, archive: bool) -> ReturningInsert[Any] | ReturningDelete[Any]:
    """Take messages that are done with out of the hot table, into the archive: those sent, and those discarded.

    Parameters: ticket (JSON rows of id and attempt and, if it was discarded, state, code and error); token.
    """
    m, a = t.messages, t.archive
    ticket = _rows("ticket", id=Uuid, attempt=Integer, state=Text, code=Text, error=Text)
    gone = delete(m).where(*_held(t, ticket), _commit_soon())
    if not archive:
        return gone.returning(cast(m.c.id, Text).label("id"))
    kept = [c.name for c in a.c if c.name in m.c]
    said = {
        "last_error_code": func.coalesce(ticket.c.code, m.c.last_error_code).label("last_error_code"),
        "last_error": func.coalesce(ticket.c.error, m.c.last_error).label("last_error"),
    }
    state = func.coalesce(ticket.c.state, literal("sent")).label("state")
    moved = gone.returning(*(said.get(name, m.c[name]) for name in kept), state).cte("moved")
    done = select(*(moved.c[name] for name in kept), moved.c.state, func.clock_timestamp())
    return insert(a).from_select([*kept, "state", "finished_at"], done).returning(cast(a.c.id, Text).label("id"))


def settle_failed(t: Tables) -> Update:
    """Record failures: to be retried under the same lease, released, or dead.

    Parameters: ticket (JSON rows of id, attempt, hold: seconds until it is due again, keep: the lease stays,
    dead, code and error); token.
    """
    m = t.messages
    ticket = _rows("ticket", id=Uuid, attempt=Integer, hold=Float, keep=Boolean, dead=Boolean, code=Text, error=Text)
    return (
        update(m)
        .where(*_held(t, ticket), _commit_soon())
        .values(
            status=case((ticket.c.dead, DEAD), else_=PENDING),
            dead_at=case((ticket.c.dead, func.clock_timestamp())),
            lease=case((ticket.c.keep, m.c.lease)),
            begun=false(),
            locked_until=func.clock_timestamp() + ticket.c.hold * SECOND,
            last_error_code=ticket.c.code,
            last_error=ticket.c.error,
        )
        .returning(cast(m.c.id, Text).label("id"))
    )


def release(t: Tables) -> Update:
    """Give leases back unused: the messages are due again after `hold` seconds.

    Parameters: ticket (JSON rows of id and attempt); token, hold.
    """
    m = t.messages
    ticket = _rows("ticket", id=Uuid, attempt=Integer)
    return (
        update(m)
        .where(*_held(t, ticket), m.c.begun == false())
        .values(lease=null(), locked_until=func.clock_timestamp() + _seconds("hold"))
        .returning(cast(m.c.id, Text).label("id"))
    )


def version(t: Tables) -> Select[Any]:
    """The version of the tables."""
    return select(func.max(t.versions.c.version))


def prepare_archive(schema: str | None, days: int) -> Executable:
    """Make the archive's partitions of today and the next `days`."""
    make = getattr(func, schema).outbox_archive_prepare if schema else func.outbox_archive_prepare
    return select(make(days))


def _pending(m: Table) -> ColumnElement[bool]:
    """Written out, not a parameter: only then can every plan use the partial index."""
    return m.c.status == literal_column("'pending'")


def _held(t: Tables, ticket: FromClause) -> list[ColumnElement[bool]]:
    """The fence: the row is still under this lease, at this attempt. Only pending rows have a lease.

    The status must not be named here: it would let the planner read the partial index from end to end when the
    table's statistics are old, instead of looking up each id.
    """
    m = t.messages
    return [
        _probe(m.c.id, ticket.c.id),
        m.c.attempts == ticket.c.attempt,
        m.c.lease == bindparam("token", type_=Uuid),
    ]


def _probe(indexed: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[bool]:
    """`indexed = value`, in a form that a plan can only meet by looking up each value in the index.

    As a plain equality it could also be met by reading the whole index in order, which looks cheap while the table
    is small, and a prepared plan outlives that.
    """
    return indexed == any_(array([value]))


def _rows(name: str, **columns: Any) -> TableValuedAlias:
    """Rows as a table, from one parameter: `json_to_recordset(:ticket) AS ticket(id UUID, attempt INTEGER)`.

    One text is cheaper to make and to read than an array a column, and other databases can do it too.
    """
    shape = [column(column_name, kind) for column_name, kind in columns.items()]
    rows = func.json_to_recordset(cast(bindparam(name, type_=Text), JSON))
    return rows.table_valued(*shape, name=name).render_derived(name=name, with_types=True)


def _seconds(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=Float) * SECOND


def _commit_soon() -> ColumnElement[bool]:
    """Let this commit reach the disk a moment later: losing it in a crash only repeats a delivery.

    A setting of the transaction made inside its only statement costs no round trip of its own.
    """
    setting = func.set_config("synchronous_commit", "off", True, type_=Text)
    return select(setting).scalar_subquery() == "off"
