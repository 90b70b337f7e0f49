"""The statements that record the outcome of a send. `tests/golden/` shows the SQL of all statements.

Each statement of the pipe is one round trip and one transaction. It uses two clocks of the database. A lease is granted
from `clock_timestamp()`, because `now()` is late after a wait for a lock. Due times are compared with `now()`, because
only `now()` can be an index condition.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    Boolean,
    Float,
    Integer,
    Table,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.sql import Update
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert

from outbox_tasks.database.breaker import recovered
from outbox_tasks.database.pieces import (
    SECOND,
    attempt_of,
    begun_once,
    bound_for,
    brief,
    commit_soon,
    finished,
    json_rows,
    more,
    never_settled,
    noted,
    probe,
)
from outbox_tasks.database.schema import DEAD, PENDING, Tables
from outbox_tasks.database.slots import freed
from outbox_tasks.model import FAILED_TOGETHER, UNSETTLED

DOUBLINGS = 6
"""How often the wait for a task to begin doubles, at most."""


def settle_done(t: Tables, *, archive: bool, alike: bool) -> ReturningInsert[Any] | ReturningDelete[Any]:
    """Move messages that were sent or discarded from the hot table to the archive, and free the slot.

    The destination has answered, so its breaker closes. Parameters: ticket (JSON rows of id and attempt and, if it was
    discarded, state, code and error), or ids and attempt if all are `alike`, and sent; token, target (the destination),
    sender (whose slot is free now).
    """
    said = {"state": Text, "code": Text, "error": Text}
    ticket = None if alike else json_rows("ticket", id=Uuid, attempt=Integer, **said)
    gone = delete(t.messages).where(*begun_once(t, ticket), bound_for(t), commit_soon())
    closed = recovered(t).cte("recovered")
    return finished(t, gone, ticket, attempt_of(ticket), archive=archive).add_cte(closed, freed(t))


def settle_handed(t: Tables) -> Update:
    """Record that the tasks' broker has the tasks: their rows stay until the tasks have run, and wait for that without
    being begun; and free the slot. The destination has answered, so its breaker closes.

    A task that did not begin to run is handed over again and again: each time it waits twice as long, so that a long
    queue is not filled with copies. Parameters: ticket (JSON rows of id, attempt and within: seconds); token, target
    (the destination), sender (whose slot is free now).
    """
    m = t.messages
    ticket = json_rows("ticket", id=Uuid, attempt=Integer, within=Float)
    not_begun = func.least(m.c.outages, 0)  # earlier outages of the broker say nothing about the task
    times = func.power(2, -func.greatest(not_begun, -DOUBLINGS))
    return (
        update(m)
        .where(*begun_once(t, ticket), bound_for(t), commit_soon())
        .values(
            begun=false(),
            attempts=ticket.c.attempt,
            handed_at=func.clock_timestamp(),
            outages=not_begun,
            locked_until=func.clock_timestamp() + ticket.c.within * times * SECOND,
        )
        .returning(cast(m.c.id, Text).label("id"))
        .add_cte(recovered(t).cte("recovered"), freed(t))
    )


def settle_failed(t: Tables) -> Update:
    """Record failures: a retry under the same lease, a release, or a dead letter; and free the slot.

    An outage of the destination does not count as an attempt. But it counts for a message that met `patience` outages
    in a row while others got through: that message may be the cause. A message behind a failed one of its key loses no
    attempt either. Parameters: ticket (JSON rows of id, attempt, hold: seconds until it is due again, keep: the lease
    stays, dead, outage, behind, code and error); token, target (the destination), patience, sender (whose slot is free
    now)."""
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
    shared = func.coalesce(ticket.c.code == literal(FAILED_TOGETHER), false())  # nobody knows which message caused it
    excused = ticket.c.outage & or_(more(m.c.outages) < bindparam("patience", type_=Integer), out_of_reach)
    return (
        update(m)
        .where(*begun_once(t, ticket), bound_for(t), commit_soon())
        .values(
            status=case((ticket.c.dead, DEAD), else_=PENDING),
            dead_at=case((ticket.c.dead, func.clock_timestamp())),
            lease=case((ticket.c.keep, m.c.lease)),
            begun=false(),
            attempts=case((or_(excused, ticket.c.behind, shared), ticket.c.attempt - 1), else_=ticket.c.attempt),
            outages=case((ticket.c.outage, more(m.c.outages)), (ticket.c.behind, m.c.outages), else_=0),
            locked_until=func.clock_timestamp() + ticket.c.hold * SECOND,
            last_error_code=case((ticket.c.behind, m.c.last_error_code), else_=ticket.c.code),
            last_error=case((ticket.c.behind, m.c.last_error), else_=ticket.c.error),
            history=case((ticket.c.behind, m.c.history), else_=noted(m, what, **said_by_it)),
        )
        .returning(cast(m.c.id, Text).label("id"))
        .add_cte(freed(t))
    )


@cache
def sent_in_vain(t: Tables, *, archive: bool) -> Update:
    """Note on messages why they may have arrived twice: this holder sent them and could not settle them, and another
    one has begun them too. Changes rows, hot or archived, that name no cause yet.

    This takes a crash of the server that undid one begin, and a task that came twice. Unless this is `sure`, the holder
    may have settled them itself, and not have heard of it: then the row still has its name. Parameters: ticket (JSON
    rows of id and attempt); holder, sure.
    """
    ticket = json_rows("ticket", id=Uuid, attempt=Integer)
    holder = bindparam("holder", type_=Text)

    def note(rows: Table) -> Update:
        others = or_(bindparam("sure", type_=Boolean), rows.c.locked_by != holder, rows.c.attempts != ticket.c.attempt)
        return (
            update(rows)
            .where(probe(rows.c.id, ticket.c.id), rows.c.last_error_code.is_(None), others)
            .values(last_error_code=UNSETTLED, last_error=never_settled(ticket.c.attempt, holder))
        )

    waiting = note(t.messages)
    return waiting.add_cte(note(t.archive).returning(t.archive.c.id).cte("noted")) if archive else waiting
