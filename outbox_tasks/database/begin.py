"""The statements that begin a send, and those that give a lease back unused."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    Integer,
    Table,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    exists,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import ColumnElement, Select, Update
from sqlalchemy.sql.dml import ReturningUpdate

from outbox_tasks.database.pieces import (
    blocked,
    bound_for,
    commit_soon,
    elapsed,
    epoch,
    held,
    json_rows,
    more,
    never_settled,
    noted,
    seconds,
    size,
)
from outbox_tasks.database.schema import Tables
from outbox_tasks.database.slots import taken
from outbox_tasks.model import UNSETTLED


def begin(t: Tables, *, alike: bool) -> Update:
    """The compare-and-set before a send: count the attempt and return the message, if it is still ours.

    Nothing is begun for a destination that is paused, has its circuit open, or has no free slot. If the last send was
    settled, and a crash of the server has undone that, the row says so from now on.

    Parameters: ticket (JSON rows of id and attempt), or ids and attempt if all are `alike`; token, target (the
    destination), holder, hold (seconds that the send gets at least), room and sender as in `slots.taken`.
    """
    m = t.messages
    ticket = None if alike else json_rows("ticket", id=Uuid, attempt=Integer)
    slot = taken(t)
    lost = noted(m, "begun again", attempt=m.c.attempts, code=UNSETTLED, by=m.c.locked_by)
    # In one subquery: it runs once, before any row is looked up.
    may = select(or_(bindparam("room", type_=Integer).is_(None), exists(select(slot.c.slot)))).scalar_subquery()
    return (
        update(m)
        .where(may, *held(t, ticket), bound_for(t), m.c.locked_until > func.clock_timestamp())
        .where(~blocked(t), commit_soon())
        .values(
            attempts=more(m.c.attempts),
            begun=true(),
            locked_by=bindparam("holder", type_=Text),
            last_error_code=case((m.c.begun, UNSETTLED), else_=m.c.last_error_code),
            last_error=case((m.c.begun, never_settled(m.c.attempts, m.c.locked_by)), else_=m.c.last_error),
            history=case((m.c.begun, lost), else_=m.c.history),
            locked_until=func.greatest(m.c.locked_until, func.clock_timestamp() + seconds("hold")),
        )
        .returning(*_fetched(m))
    )


def _fetched(m: Table) -> tuple[ColumnElement[Any], ...]:
    """The fields of a `LeasedMessage`, in their order."""
    due_since = func.coalesce(m.c.deliver_at, m.c.created_at)
    return (
        cast(m.c.id, Text).label("id"),
        m.c.event_type,
        m.c.destination,
        m.c.key,
        m.c.payload,
        m.c.content_type,
        # Mostly empty, and then not worth parsing. As text, and the time as a number: one value that the driver
        # can't read, and anybody can write such values, would lose the whole answer.
        cast(func.nullif(m.c.headers, cast(literal_column("'{}'"), JSONB)), Text).label("headers"),
        m.c.aggregate_type,
        m.c.aggregate_id,
        epoch(m.c.created_at).label("created_at"),
        m.c.attempts,
        m.c.latest,
        elapsed(due_since, func.clock_timestamp()).label("age"),
    )


@cache
def size_of(t: Tables) -> Select[Any]:
    """Bytes of the payload of a leased message. Parameters: ticket (JSON rows of id and attempt); token."""
    ticket = json_rows("ticket", id=Uuid, attempt=Integer)
    return select(size(t.messages)).where(*held(t, ticket))


@cache
def release(t: Tables) -> Update:
    """Give leases back unused. The messages are due again after `hold` seconds.

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


@cache
def give_back(t: Tables) -> ReturningUpdate[Any]:
    """Release messages that can't be begun because their destination is paused, or its circuit is open.

    Parameters: ticket (JSON rows of id and attempt); token, target (the destination).
    """
    m = t.messages
    ticket = json_rows("ticket", id=Uuid, attempt=Integer)
    return (
        update(m)
        .where(*held(t, ticket), bound_for(t), m.c.begun.is_(False), blocked(t))
        .values(lease=null(), locked_until=func.clock_timestamp())
        .returning(m.c.id)
    )
