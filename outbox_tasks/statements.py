"""Every SQL statement of the pipe, as pure functions of the tables. `tests/golden/` shows the SQL they become.

Each statement is one round trip and its own transaction. Two clocks, both the database's: a lease is granted
from `clock_timestamp()`, since `now()` is already late after a wait for a lock; what is due is compared with
`now()`, which alone can be an index condition.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    Boolean,
    DateTime,
    Float,
    Integer,
    Text,
    Uuid,
    any_,
    bindparam,
    case,
    cast,
    delete,
    exists,
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
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.sql import ColumnElement, Delete, Executable, Insert, Select, Update
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert
from sqlalchemy.sql.selectable import TableValuedAlias

from outbox_tasks.breaker import recovered
from outbox_tasks.schema import DEAD, PENDING, Tables
from outbox_tasks.sql import SECOND, blocked, commit_soon, held, json_rows, pending, probe, seconds

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
    row = json_rows("row", **ROW)
    values = _written(row)
    return insert(t.messages).from_select(list(values), select(*values.values()).select_from(row))


def publish_once(schema: str | None) -> Select[Any]:
    """The same for messages whose ids the application chose: one that is there already is not written again.

    Fails with SQLSTATE 23505 if an id belongs to a message with other content.
    """
    row = json_rows("row", **ROW)
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
        .where(past.c.received_at < func.now() - seconds("keep"))
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
    share = json_rows("share", destination=Text, size=Integer, ceiling=Integer)
    due = (
        select(m.c.id, m.c.attempts, m.c.lease, m.c.begun, m.c.locked_by, m.c.last_error_code)
        .where(pending(m), m.c.destination == share.c.destination, m.c.locked_until <= func.now())
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
        .where(probe(m.c.id, picked.c.id))
        .values(
            lease=case((exhausted, null()), else_=bindparam("token", type_=Uuid)),
            locked_by=bindparam("holder", type_=Text),
            locked_until=func.clock_timestamp() + seconds("hold"),
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
    first = select(m.c.destination).where(pending(m)).order_by(m.c.destination).limit(1)
    found = select(first.scalar_subquery().label("destination")).cte("found", recursive=True)
    step = (
        select(m.c.destination)
        .where(pending(m), m.c.destination > found.c.destination)
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
        .where(pending(m), m.c.destination == unknown.c.destination, m.c.locked_until <= func.now())
        .order_by(m.c.locked_until)
        .limit(100)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )
    picked = select(due.c.id).select_from(unknown.join(due, true())).cte("picked")
    return (
        update(m)
        .where(probe(m.c.id, picked.c.id))
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

    Nothing is begun for a destination that is left alone. Parameters: ticket (JSON rows of id and attempt); token,
    destination, holder, hold (seconds: granted to the send at least).
    """
    m = t.messages
    ticket = json_rows("ticket", id=Uuid, attempt=Integer)
    return (
        update(m)
        .where(*held(t, ticket), m.c.locked_until > func.clock_timestamp(), ~blocked(t), commit_soon())
        .values(
            attempts=m.c.attempts + 1,
            begun=true(),
            locked_by=bindparam("holder", type_=Text),
            locked_until=func.greatest(m.c.locked_until, func.clock_timestamp() + seconds("hold")),
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

    Their destination has answered, and so its breaker closes. Parameters: ticket (JSON rows of id and attempt and, if
    it was discarded, state, code and error); token, target (the destination).
    """
    m, a = t.messages, t.archive
    ticket = json_rows("ticket", id=Uuid, attempt=Integer, state=Text, code=Text, error=Text)
    gone = delete(m).where(*held(t, ticket), commit_soon())
    closed = recovered(t).cte("recovered")
    if not archive:
        return gone.returning(cast(m.c.id, Text).label("id")).add_cte(closed)
    kept = [c.name for c in a.c if c.name in m.c]
    said = {
        "last_error_code": func.coalesce(ticket.c.code, m.c.last_error_code).label("last_error_code"),
        "last_error": func.coalesce(ticket.c.error, m.c.last_error).label("last_error"),
    }
    state = func.coalesce(ticket.c.state, literal("sent")).label("state")
    moved = gone.returning(*(said.get(name, m.c[name]) for name in kept), state).cte("moved")
    done = select(*(moved.c[name] for name in kept), moved.c.state, func.clock_timestamp())
    into = insert(a).from_select([*kept, "state", "finished_at"], done).returning(cast(a.c.id, Text).label("id"))
    return into.add_cte(closed)


def settle_failed(t: Tables) -> Update:
    """Record failures: to be retried under the same lease, released, or dead.

    An outage of the destination gives the attempt back; only to a message that has met `patience` of them in a row,
    while others got through, it counts: it may be the cause. Parameters: ticket (JSON rows of id, attempt, hold:
    seconds until it is due again, keep: the lease stays, dead, outage, code and error); token, target (the
    destination), patience.
    """
    m, d = t.messages, t.destinations
    said = {"keep": Boolean, "dead": Boolean, "outage": Boolean, "code": Text, "error": Text}
    ticket = json_rows("ticket", id=Uuid, attempt=Integer, hold=Float, **said)
    out_of_reach = exists(
        select(d.c.name).where(d.c.name == bindparam("target", type_=Text), d.c.opened_at.is_not(None))
    )
    excused = ticket.c.outage & or_(m.c.outages + 1 < bindparam("patience", type_=Integer), out_of_reach)
    return (
        update(m)
        .where(*held(t, ticket), commit_soon())
        .values(
            status=case((ticket.c.dead, DEAD), else_=PENDING),
            dead_at=case((ticket.c.dead, func.clock_timestamp())),
            lease=case((ticket.c.keep, m.c.lease)),
            begun=false(),
            attempts=case((excused, m.c.attempts - 1), else_=m.c.attempts),
            outages=case((ticket.c.outage, m.c.outages + 1), else_=0),
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
    ticket = json_rows("ticket", id=Uuid, attempt=Integer)
    return (
        update(m)
        .where(*held(t, ticket), m.c.begun == false())
        .values(lease=null(), locked_until=func.clock_timestamp() + seconds("hold"))
        .returning(cast(m.c.id, Text).label("id"))
    )


def version(t: Tables) -> Select[Any]:
    """The version of the tables."""
    return select(func.max(t.versions.c.version))


def prepare_archive(schema: str | None, days: int) -> Executable:
    """Make the archive's partitions of today and the next `days`."""
    make = getattr(func, schema).outbox_archive_prepare if schema else func.outbox_archive_prepare
    return select(make(days))
