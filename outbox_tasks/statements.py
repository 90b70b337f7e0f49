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
    Table,
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
from outbox_tasks.model import FAILED_TOGETHER
from outbox_tasks.schema import DEAD, PENDING, Tables, function
from outbox_tasks.slots import freed, taken
from outbox_tasks.sql import (
    SECOND,
    begun_once,
    blocked,
    bound_for,
    brief,
    commit_soon,
    elapsed,
    held,
    json_rows,
    never_settled,
    noted,
    probe,
    seconds,
)

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
    "priority": Text,
    "latest": Boolean,
}
"""A row to be written: the payload as text or, in base64, as data; due at deliver_at or after delay seconds."""

UNSETTLED = "unsettled"
"""The code of a message whose send was begun, and nobody knows how it ended."""

PRIORITIES = {"high": 1, "normal": 0, "low": -1}


def publish(t: Tables) -> Insert:
    """Messages, due from now on or later. Parameter: row (JSON rows as in `ROW`).

    One text parameter, because applications write through drivers that agree on little else.
    """
    row = json_rows("row", **ROW)
    rank = case(PRIORITIES, value=row.c.priority, else_=0)
    values = {**_written(row), "priority": rank, "latest": func.coalesce(row.c.latest, false())}
    return insert(t.messages).from_select(list(values), select(*values.values()).select_from(row))


def publish_once(schema: str | None) -> Select[Any]:
    """The same for messages whose ids the application chose: one that is there already is not written again.

    Fails with SQLSTATE 23505 if an id belongs to a message with other content.
    """
    row = json_rows("row", **ROW)
    values = _written(row)
    values |= {
        "priority": func.coalesce(row.c.priority, "normal"),
        "latest": func.coalesce(row.c.latest, false()),
    }
    names = ["event_type", "payload", "key", "destination", "headers", "locked_until", "id", "content_type",
             "aggregate_type", "aggregate_id", "priority", "latest"]  # fmt: skip
    return select(function(schema, "outbox_publish")(*(values[name] for name in names))).select_from(row)


def cancel(schema: str | None) -> Select[Any]:
    """Take messages back that are not on their way; one row for each that was. Parameter: ids (array)."""
    ids = bindparam("ids", type_=ARRAY(Uuid))
    return select(function(schema, "outbox_cancel")(ids))


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


def begin(t: Tables) -> Update:
    """The compare-and-set before a send: counts the attempt and returns the message, if it is still ours.

    If its last send was settled and a crash of the server has undone that, its row says so from now on.
    Nothing is begun for a destination that is left alone, nor without one of its slots where they are counted.
    Parameters: ticket (JSON rows of id and attempt); token, target (the destination), holder, hold (seconds: granted to
    the send at least), room and sender as in `slots.taken`.
    """
    m = t.messages
    ticket = json_rows("ticket", id=Uuid, attempt=Integer)
    slot = taken(t)
    since = func.coalesce(m.c.deliver_at, m.c.created_at)
    lost = noted(m, "begun again", attempt=m.c.attempts, code=UNSETTLED, by=m.c.locked_by)
    # In one subquery, which is run once, and before any row is looked up.
    may = select(or_(bindparam("room", type_=Integer).is_(None), exists(select(slot.c.slot)))).scalar_subquery()
    return (
        update(m)
        .where(may, *held(t, ticket), bound_for(t), m.c.locked_until > func.clock_timestamp())
        .where(~blocked(t), commit_soon())
        .values(
            attempts=m.c.attempts + 1,
            begun=true(),
            locked_by=bindparam("holder", type_=Text),
            last_error_code=case((m.c.begun, UNSETTLED), else_=m.c.last_error_code),
            last_error=case((m.c.begun, never_settled(m.c.attempts, m.c.locked_by)), else_=m.c.last_error),
            history=case((m.c.begun, lost), else_=m.c.history),
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
            m.c.latest,
            elapsed(since, func.clock_timestamp()).label("age"),
        )
    )


def settle_done(t: Tables, *, archive: bool) -> ReturningInsert[Any] | ReturningDelete[Any]:
    """Take messages that are done with out of the hot table, into the archive: those sent, and those discarded.

    Their destination has answered, and so its breaker closes. Parameters: ticket (JSON rows of id and attempt and, if
    it was discarded, state, code and error); token, target (the destination), sender (whose slot is free now).
    """
    m, a = t.messages, t.archive
    ticket = json_rows("ticket", id=Uuid, attempt=Integer, state=Text, code=Text, error=Text)
    gone = delete(m).where(*begun_once(t, ticket), bound_for(t), commit_soon())
    closed = recovered(t).cte("recovered")
    if not archive:
        return gone.returning(cast(m.c.id, Text).label("id")).add_cte(closed, freed(t))
    kept = [c.name for c in a.c if c.name in m.c]
    said = {
        "last_error_code": func.coalesce(ticket.c.code, m.c.last_error_code).label("last_error_code"),
        "last_error": func.coalesce(ticket.c.error, m.c.last_error).label("last_error"),
        "attempts": ticket.c.attempt.label("attempts"),
    }
    state = func.coalesce(ticket.c.state, literal("sent")).label("state")
    moved = gone.returning(*(said.get(name, m.c[name]) for name in kept), state).cte("moved")
    done = select(*(moved.c[name] for name in kept), moved.c.state, func.clock_timestamp())
    into = insert(a).from_select([*kept, "state", "finished_at"], done).returning(cast(a.c.id, Text).label("id"))
    return into.add_cte(closed, freed(t))


def settle_failed(t: Tables) -> Update:
    """Record failures: to be retried under the same lease, released, or dead.

    An outage of the destination gives the attempt back; only to a message that has met `patience` of them in a row,
    while others got through, it counts: it may be the cause. What was behind another of its key loses nothing.
    Parameters: ticket (JSON rows of id, attempt, hold:
    seconds until it is due again, keep: the lease stays, dead, outage, behind, code and error); token, target (the
    destination), patience, sender (whose slot is free now).
    """
    m, d = t.messages, t.destinations
    said = {"keep": Boolean, "dead": Boolean, "outage": Boolean, "behind": Boolean, "code": Text, "error": Text}
    ticket = json_rows("ticket", id=Uuid, attempt=Integer, hold=Float, **said)
    out_of_reach = exists(
        select(d.c.name).where(d.c.name == bindparam("target", type_=Text), d.c.opened_at.is_not(None))
    )
    what = case((ticket.c.dead, literal("dead")), (ticket.c.outage, literal("outage")), else_=literal("failed"))
    said_by_it = {
        "attempt": ticket.c.attempt, "code": ticket.c.code, "error": brief(ticket.c.error), "by": m.c.locked_by
    }  # fmt: skip
    shared = func.coalesce(ticket.c.code == literal(FAILED_TOGETHER), false())  # nobody knows whose fault it was
    excused = ticket.c.outage & or_(m.c.outages + 1 < bindparam("patience", type_=Integer), out_of_reach)
    return (
        update(m)
        .where(*begun_once(t, ticket), bound_for(t), commit_soon())
        .values(
            status=case((ticket.c.dead, DEAD), else_=PENDING),
            dead_at=case((ticket.c.dead, func.clock_timestamp())),
            lease=case((ticket.c.keep, m.c.lease)),
            begun=false(),
            attempts=case((or_(excused, ticket.c.behind, shared), ticket.c.attempt - 1), else_=ticket.c.attempt),
            outages=case((ticket.c.outage, m.c.outages + 1), (ticket.c.behind, m.c.outages), else_=0),
            locked_until=func.clock_timestamp() + ticket.c.hold * SECOND,
            last_error_code=case((ticket.c.behind, m.c.last_error_code), else_=ticket.c.code),
            last_error=case((ticket.c.behind, m.c.last_error), else_=ticket.c.error),
            history=case((ticket.c.behind, m.c.history), else_=noted(m, what, **said_by_it)),
        )
        .returning(cast(m.c.id, Text).label("id"))
        .add_cte(freed(t))
    )


def sent_in_vain(t: Tables, *, archive: bool) -> Update:
    """Note the cause of a repetition on messages that were sent by one who could not settle them, where another has
    begun them too and nothing else says so: they, or the archive's.

    That takes a crash of the server, which has undone the one begin, and a task that came twice. Parameters: ticket
    (JSON rows of id and attempt); holder.
    """
    ticket = json_rows("ticket", id=Uuid, attempt=Integer)
    holder = bindparam("holder", type_=Text)

    def note(rows: Table) -> Update:
        others = or_(rows.c.locked_by != holder, rows.c.attempts != ticket.c.attempt)
        return (
            update(rows)
            .where(probe(rows.c.id, ticket.c.id), rows.c.last_error_code.is_(None), others)
            .values(last_error_code=UNSETTLED, last_error=never_settled(ticket.c.attempt, holder))
        )

    waiting = note(t.messages)
    return waiting.add_cte(note(t.archive).returning(t.archive.c.id).cte("noted")) if archive else waiting


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
    return select(function(schema, "outbox_archive_prepare")(days))
