"""The statements of acts that go on in the background.

An act has a row in `outbox_acts` as long as there is something left to do. A process leases it, and each batch holds
the row: so no batch is done once another process has the lease, or once the act has ended.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    DateTime,
    Float,
    Integer,
    Numeric,
    Text,
    Uuid,
    all_,
    bindparam,
    cast,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql import ColumnElement, Select
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from outbox_tasks.database.pieces import elapsed, seconds
from outbox_tasks.database.schema import Tables
from outbox_tasks.operating import audit


def begun(t: Tables) -> ReturningInsert[Any]:
    """Begin an act; returns its entry in the audit, or nothing if an act with this token has begun before. Parameters:
    those of `audit.opened`; chosen, moment (as_of; never later than now), pace (rate), limit, expected (total)."""
    a = t.acts
    entry = audit.opened(t, once=True).cte("audited")
    until = func.least(bindparam("moment", type_=DateTime(True)), func.clock_timestamp())
    values: dict[str, Any] = {
        "act": entry.c.seq,
        "wanted": bindparam("chosen", type_=JSONB),
        "as_of": until,
        "rate": cast(bindparam("pace", type_=Float), Float),
        "most": cast(bindparam("limit", type_=BigInteger), BigInteger),
        "total": cast(bindparam("expected", type_=BigInteger), BigInteger),
    }
    return (
        insert(a)
        .from_select(list(values), select(*values.values()).select_from(entry))
        .returning(a.c.act.label("entry"))
    )


def begun_by(t: Tables) -> Select[Any]:
    """The entry of the act with this token, and the digest of its form. Parameter: token."""
    form = t.audit.c.facts.op("->>", return_type=Text)(cast(audit.FORM, Text)).label("form")
    return select(t.audit.c.seq.label("entry"), form).where(t.audit.c.once == bindparam("token", type_=Uuid))


def taken(t: Tables) -> ReturningUpdate[Any]:
    """Lease acts that nobody runs; returns their entries. Parameters: token (of the process), holder (its name),
    duration (seconds), running (array of entries: those that it runs now), size (acts at most)."""
    a, token = t.acts, bindparam("token", type_=Uuid)
    ended = or_(a.c.locked_until <= func.clock_timestamp(), a.c.lease == token)
    running = bindparam("running", type_=ARRAY(BigInteger))
    some = select(a.c.act).where(ended, a.c.act != all_(running)).order_by(a.c.act)
    free = some.limit(bindparam("size", type_=Integer)).with_for_update(skip_locked=True).cte("free")
    return (
        update(a)
        .where(a.c.act == free.c.act)
        .values(lease=token, locked_by=bindparam("holder", type_=Text), locked_until=_lease_end())
        .returning(a.c.act.label("entry"))
    )


def prolonged(t: Tables) -> CTE:
    """A row if the act still has this lease, which is prolonged. The act's row stays locked until the statement ends.
    Parameters: entry, token, duration."""
    a = t.acts
    own = (a.c.act == bindparam("entry", type_=BigInteger), a.c.lease == bindparam("token", type_=Uuid))
    return update(a).where(*own).values(locked_until=_lease_end()).returning(a.c.act).cte("held")


def renewed(t: Tables) -> ReturningUpdate[Any]:
    """Prolong all leases of a process; returns the entries that it still has. Parameters: token, duration (0: give them
    back)."""
    a = t.acts
    return (
        update(a)
        .where(a.c.lease == bindparam("token", type_=Uuid))
        .values(locked_until=_lease_end())
        .returning(a.c.act.label("entry"))
    )


def ended(t: Tables, *, leased: bool) -> ReturningUpdate[Any]:
    """End an act, and note in the audit how it ended; returns its entry, unless it had ended before. Parameters: entry;
    found (facts); `leased`: only if it has this lease: token."""
    a, b = t.acts, t.audit
    own: list[ColumnElement[bool]] = [a.c.act == bindparam("entry", type_=BigInteger)]
    if leased:
        own.append(a.c.lease == bindparam("token", type_=Uuid))
    gone = delete(a).where(*own).returning(a.c.act).cte("gone")
    took = func.round(cast(elapsed(b.c.at, func.clock_timestamp()), Numeric), 1)
    facts = b.c.facts.op("||")(bindparam("found", type_=JSONB)).op("||")(func.jsonb_build_object("seconds", took))
    closed = {"facts": facts, "closed_at": func.clock_timestamp()}
    return update(b).where(b.c.seq == gone.c.act).values(closed).returning(b.c.seq.label("entry"))


def one(t: Tables) -> Select[Any]:
    """An act as the audit has it, and what is still to do; `wanted` is null if it has ended, or never went on in the
    background. Parameter: entry."""
    return _acts(t, outer=True).where(t.audit.c.seq == bindparam("entry", type_=BigInteger))


def going(t: Tables) -> Select[Any]:
    """The acts that go on, the oldest first. Parameter: size."""
    return _acts(t, outer=False).order_by(t.acts.c.act).limit(bindparam("size", type_=Integer))


def _acts(t: Tables, *, outer: bool) -> Select[Any]:
    a = t.acts
    names = ("wanted", "as_of", "rate", "most", "total", "locked_by")
    held = (a.c.locked_until > func.clock_timestamp()).label("held")
    age = elapsed(t.audit.c.at, func.clock_timestamp()).label("age")
    rows = t.audit.join(a, a.c.act == t.audit.c.seq, isouter=outer)
    return audit.shown(t).add_columns(*(a.c[name] for name in names), held, age).select_from(rows)


def _lease_end() -> ColumnElement[Any]:
    return func.clock_timestamp() + seconds("duration")
