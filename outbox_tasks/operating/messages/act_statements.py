"""The statements of people's acts on messages.

First the ids are read, a page at a time along an index. Then each batch is changed by its ids, if the rows still have
the state they were chosen for. Rows that somebody else is changing at that moment are skipped. Each change is noted on
the row and counted in the audit entry, in the same transaction.
"""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    DateTime,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    delete,
    exists,
    false,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.sql import ColumnElement, Select

from outbox_tasks.database import hops
from outbox_tasks.database.pieces import noted, probe
from outbox_tasks.database.schema import DEAD, PENDING, Tables, error_group
from outbox_tasks.database.states import is_dead
from outbox_tasks.operating import audit
from outbox_tasks.operating.messages.background_statements import prolonged
from outbox_tasks.operating.messages.find_statements import columns, wanted


def places_of_dead(t: Tables) -> Select[Any]:
    """The time, and the destinations that have dead letters: a row for each, or one row without a name."""
    place = hops.values(t.messages.c.destination, (is_dead(t.messages),), "place")
    now = select(func.clock_timestamp().label("now")).subquery("clock")
    return select(now.c.now, place.c.name).select_from(now.outerjoin(place, true()))


KIND = ("destination", "event_type", "state", "last_error_code")
"""The columns by which messages are grouped when they are counted."""


def next_dead(t: Tables, by: Literal["destination", "group"], *, counted: bool = False) -> Select[Any]:
    """The next page of the dead letters of a destination, or of an error group, the first to die first.

    Returns the ids of the wanted messages; or, `counted`, the number of each kind with one of their ids. Each row has
    `time` and `last`, where the next page begins; null: there is none. A row without an id means that none was found.
    Parameters: place (the destination, or the group); those of `find_statements`, but for size; until (the latest time
    of death, and the time from which ages count); time and last, where this page begins.
    """
    m = t.messages
    column = error_group(m) if by == "group" else m.c.destination
    begin = tuple_(bindparam("time", type_=DateTime(True)), bindparam("last", type_=Uuid))
    some = select(*columns(m)).where(
        is_dead(m),
        column == bindparam("place", type_=Text),
        m.c.dead_at <= bindparam("until", type_=DateTime(True)),
        tuple_(m.c.dead_at, m.c.id) > begin,
    )
    return _page(some, {"time": m.c.dead_at, "last": m.c.id}, counted)


def next_waiting(t: Tables, *, counted: bool = False) -> Select[Any]:
    """The next page of messages that are not yet sent, by id. As for `next_dead`, without place and time. `until`: the
    latest time of writing; without it, new messages could come without end."""
    m = t.messages
    here = (m.c.id > bindparam("last", type_=Uuid), m.c.created_at <= bindparam("until", type_=DateTime(True)))
    return _page(select(*columns(m)).where(*here), {"last": m.c.id}, counted)


def _page(some: Select[Any], by: dict[str, Any], counted: bool) -> Select[Any]:
    """Look at `look` rows in this order, and return the wanted ones."""
    look = bindparam("look", type_=Integer)
    seen = some.order_by(*by.values()).limit(look).cte("seen").prefix_with("MATERIALIZED")
    order = [seen.c[column.name] for column in by.values()]
    full = select(func.count() >= look).select_from(seen).scalar_subquery()
    ends = [column.label(name) for name, column in zip(by, order, strict=True)]
    last = select(*ends).where(full).order_by(*(column.desc() for column in order)).limit(1).subquery("last")
    rules = wanted(seen.c, bindparam("until", type_=DateTime(True)))
    if counted:
        kind = [seen.c[name] for name in KIND]
        first = cast(func.min(cast(seen.c.id, Text)), Uuid)  # there is no min() of a uuid before PostgreSQL 18
        counts = (func.count().label("count"), first.label("id"))
        found = select(*kind, *counts).where(*rules).group_by(*kind)
    else:
        found = select(seen.c.id, seen.c.dead_at).where(*rules)
    rows = found.subquery("found")
    always = select(literal_column("1")).subquery("always")
    page = select(last, rows).select_from(always.outerjoin(last, true()).outerjoin(rows, true()))
    return page if counted else page.order_by(*(rows.c[column.name] for column in order))


def redrive(t: Tables, *, leased: bool = False) -> Select[Any]:
    """Make dead letters due again, with all their attempts, at their old place in the order of their key. Their last
    error stays, so that a message that killed a worker still travels alone.

    Returns their ids. Parameters: ids (array); until (the latest time of death; null: any); person, reason;
    entry (of the audit). `leased`: see `_done`.
    """
    m = t.messages
    until = bindparam("until", type_=DateTime(True))
    dead = (_is(m, DEAD), or_(cast(until, DateTime(True)).is_(None), m.c.dead_at <= until))
    held = prolonged(t) if leased else None
    picked = _picked(t, *dead, held=held)
    now = func.clock_timestamp()
    changed = (
        update(m)
        .where(probe(m.c.id, picked.c.id))
        .values(
            status=PENDING,
            dead_at=null(),
            lease=null(),
            begun=false(),
            attempts=0,
            outages=0,
            locked_until=now,
            # max_age counts from here.
            deliver_at=now,
            history=_noted(t, "redriven", attempts=m.c.attempts, deliver_at=m.c.deliver_at),
        )
        .returning(cast(m.c.id, Text).label("id"))
        .cte("changed")
    )
    return _done(t, changed, held, ids=True)


def discard(t: Tables, *, archive: bool, leased: bool = False) -> Select[Any]:
    """Move messages that nobody wants any more to the archive, or delete them: dead ones, and those that are not being
    sent.

    Returns their ids. Parameters: ids (array); states (array of `dead`, `waiting`); until, as for `redrive`; person,
    reason, entry. `leased`: see `_done`.
    """
    m, a = t.messages, t.archive
    until = bindparam("until", type_=DateTime(True))
    states = bindparam("states", type_=ARRAY(Text))
    died = and_(
        is_dead(m),
        or_(cast(until, DateTime(True)).is_(None), m.c.dead_at <= until),
        literal("dead") == func.any(states),
    )
    # As in outbox_cancel: a message that waits for a retry has a lease, but has not begun.
    still = or_(m.c.lease.is_(None), m.c.locked_by.is_(None), m.c.attempts > 0, m.c.locked_until <= func.now())
    waits = and_(_is(m, PENDING), m.c.begun == false(), still, literal("waiting") == func.any(states))
    held = prolonged(t) if leased else None
    picked = _picked(t, or_(died, waits), held=held)
    gone = delete(m).where(probe(m.c.id, picked.c.id))
    if not archive:
        taken = gone.returning(cast(m.c.id, Text).label("id")).cte("gone")
        return _done(t, taken, held)
    kept = [c.name for c in a.c if c.name in m.c]
    person, reason = bindparam("person", type_=Text), bindparam("reason", type_=Text)
    error = func.concat_ws(": ", func.concat("discarded by ", person), reason)
    changed = {
        "last_error_code": func.coalesce(m.c.last_error_code, "discarded").label("last_error_code"),
        "last_error": func.coalesce(m.c.last_error, error).label("last_error"),
        "history": _noted(t, "discarded").label("history"),
    }
    taken = gone.returning(*(changed.get(name, m.c[name]) for name in kept)).cte("gone")
    done = select(*(taken.c[name] for name in kept), literal_column("'discarded'", Text), func.clock_timestamp())
    into = insert(a).from_select([*kept, "state", "finished_at"], done).returning(cast(a.c.id, Text).label("id"))
    moved = into.cte("moved")
    return _done(t, moved, held)


def edit(t: Tables) -> Select[Any]:
    """Replace the payload of a dead letter, if nobody else has changed it. The audit keeps the former one.

    Returns its id. Parameters: message (its id), body, kind (content type); digest (SHA-256 of the former payload);
    person, reason.
    """
    m = t.messages
    payload = bindparam("body", type_=LargeBinary)
    same = func.sha256(m.c.payload) == bindparam("digest", type_=LargeBinary)
    before = (
        select(m.c.id, m.c.payload, m.c.content_type)
        .where(m.c.id == bindparam("message", type_=Uuid), is_dead(m), same)
        .with_for_update()
        .cte("before")
    )
    facts: dict[str, Any] = {
        audit.FORMER: func.translate(func.encode(before.c.payload, literal_column("'base64'")), "\n", ""),
        "former_content_type": before.c.content_type,
        "size": func.length(payload),
        "former_size": func.length(before.c.payload),
    }
    entry = audit.recorded(t, "edit", cast(before.c.id, Text), before, **facts)
    changed = (
        update(m)
        .where(probe(m.c.id, before.c.id))
        .values(
            payload=payload,
            content_type=bindparam("kind", type_=Text),
            history=noted(m, "edited", by=bindparam("person", type_=Text), why=bindparam("reason", type_=Text)),
        )
        .returning(cast(m.c.id, Text).label("id"))
        .cte("changed")
    )
    return select(changed.c.id, entry.c.seq.label("entry")).select_from(changed.join(entry, true()))


def _done(t: Tables, changed: CTE, held: CTE | None, *, ids: bool = False) -> Select[Any]:
    """The ids of the changed rows, which are counted in the audit. With `held`, the lease of an act in the background:
    no row if the lease is lost, and a row without an id if there is no changed row."""
    counted = audit.counted(t, changed, audit.ids_of(t, changed) if ids else None)
    if held is None:
        return select(changed.c.id).add_cte(counted)
    return select(changed.c.id).select_from(held.outerjoin(changed, true())).add_cte(counted)


def _picked(t: Tables, *rules: ColumnElement[bool], held: CTE | None) -> CTE:
    """The rows with these ids for which the rules hold, locked; always in the same order."""
    m = t.messages
    if held is not None:
        rules = (*rules, exists(select(held.c.act)))
    asked = func.unnest(bindparam("ids", type_=ARRAY(Uuid))).table_valued("id", name="asked").render_derived()
    rows = select(m.c.id).select_from(asked.join(m, probe(m.c.id, asked.c.id))).where(*rules)
    return rows.with_for_update(of=m, skip_locked=True).cte("picked").prefix_with("MATERIALIZED")


def _is(m: Table, status: str) -> ColumnElement[bool]:
    """The status, written so that no partial index matches: the planner might read all of that index for each id."""
    return func.concat(m.c.status) == literal(status)


def _noted(t: Tables, what: str, **facts: ColumnElement[Any]) -> ColumnElement[Any]:
    by: dict[str, Any] = {"by": bindparam("person", type_=Text), "why": bindparam("reason", type_=Text)}
    by |= {"entry": bindparam("entry", type_=BigInteger), **facts}
    return noted(t.messages, what, **by)
