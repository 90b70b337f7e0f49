"""The statements that limit a destination: how many sends run at once, and how many messages a second it gets.

A send holds one of its destination's rows of `outbox_slots` from begin to settle. Each caller says how many of the rows
count, because that follows the number of processes that publish. If a process dies, its slot is free when the hold is
over. A rate is a token bucket on the destination's row: time fills it, and claims empty it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    Float,
    Integer,
    Text,
    Uuid,
    bindparam,
    cast,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql import ColumnElement, Delete, Insert, Select, Update
from sqlalchemy.sql.dml import ReturningUpdate

from outbox_tasks.database.pieces import SECOND, commit_soon, elapsed, json_rows, seconds
from outbox_tasks.database.schema import Tables
from outbox_tasks.settings import SLOW

SEEN = 30.0
"""A process counts as one that sends for so many seconds after it last noted that."""


def seen(t: Tables) -> Select[Any]:
    """Note that this process sends, and count the other processes that do. Parameter: holders (the names of this
    process, one for each of its threads)."""
    p, me = t.publishers, bindparam("holders", type_=ARRAY(Text))
    names = select(func.unnest(me), func.clock_timestamp()).where(commit_soon())
    add = insert(p).from_select(["holder", "seen_at"], names)
    here = add.on_conflict_do_update(index_elements=[p.c.holder], set_={"seen_at": add.excluded.seen_at})
    return publishers(t).where(p.c.holder != func.all_(me)).add_cte(here.cte("here"))


def publishers(t: Tables) -> Select[Any]:
    """How many processes publish."""
    p = t.publishers
    return select(func.count()).select_from(p).where(p.c.seen_at > func.now() - literal(SEEN) * SECOND)


def neighbours(t: Tables) -> Select[Any]:
    """The processes that sent within `recent` seconds, and whose names begin with `place`."""
    p = t.publishers
    here = func.starts_with(p.c.holder, bindparam("place", type_=Text))
    return select(p.c.holder).where(here, p.c.seen_at > func.now() - seconds("recent"))


def left(t: Tables) -> Delete:
    """Remove a process that no longer sends. Parameter: holders (its names)."""
    return delete(t.publishers).where(t.publishers.c.holder == func.any_(bindparam("holders", type_=ARRAY(Text))))


def forget_publishers(t: Tables) -> Delete:
    """Remove processes that have sent nothing for a day."""
    return delete(t.publishers).where(t.publishers.c.seen_at < func.now() - literal(86_400.0) * SECOND)


def make_slots(t: Tables) -> Insert:
    """Make the slots that are missing. Parameter: wanted (JSON rows of destination and room)."""
    wanted = json_rows("wanted", destination=Text, room=Integer)
    number = func.generate_series(0, wanted.c.room - 1).table_valued("slot", name="number").render_derived()
    missing = select(wanted.c.destination, number.c.slot).select_from(wanted.join(number, true()))
    return insert(t.slots).from_select(["destination", "slot"], missing).on_conflict_do_nothing()


def taken(t: Tables) -> CTE:
    """Take a free slot, in `begin`. Parameters: target (the destination), room (slots that count; null: no limit, and
    no slot is taken), sender (a token), holder, keep (seconds)."""
    s = t.slots
    free = (
        select(s.c.slot)
        .where(
            s.c.destination == bindparam("target", type_=Text),
            s.c.slot < bindparam("room", type_=Integer),
            or_(s.c.held_until.is_(None), s.c.held_until < func.clock_timestamp()),
        )
        .order_by(s.c.slot)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return (
        update(s)
        .where(s.c.destination == bindparam("target", type_=Text), s.c.slot == free.scalar_subquery())
        .values(
            token=bindparam("sender", type_=Uuid),
            holder=bindparam("holder", type_=Text),
            taken_at=func.clock_timestamp(),
            held_until=func.clock_timestamp() + seconds("keep"),
        )
        .returning(s.c.slot)
        .cte("slot")
    )


def freed(t: Tables) -> CTE:
    """Give the slot back, in `settle`. Parameters: target, sender."""
    s = t.slots
    return (
        update(s)
        .where(s.c.destination == bindparam("target", type_=Text), s.c.token == bindparam("sender", type_=Uuid))
        .values(token=null(), held_until=null())
        .returning(s.c.slot)
        .cte("freed")
    )


def holders(t: Tables) -> Select[Any]:
    """The processes that hold slots of a destination. Parameter: target."""
    s = t.slots
    held = (s.c.destination == bindparam("target", type_=Text), s.c.held_until > func.now())
    return select(s.c.holder).where(*held).distinct()


def held(t: Tables, *, of_one: bool) -> Select[Any]:
    """The sends that run now and hold a slot, the longest first: destination, holder, and seconds (for how long).
    Parameters: size, and with `of_one` target (the destination)."""
    s = t.slots
    found = select(s.c.destination, s.c.holder, elapsed(s.c.taken_at, func.now()).label("seconds")).where(
        s.c.held_until > func.now()
    )
    found = found.where(s.c.destination == bindparam("target", type_=Text)) if of_one else found
    return found.order_by(s.c.taken_at).limit(bindparam("size", type_=Integer))


def vacated(t: Tables) -> Update:
    """Free the slots of processes that are gone. Parameters: target, gone (array of holders)."""
    s = t.slots
    gone = s.c.holder == func.any_(bindparam("gone", type_=ARRAY(Text)))
    return (
        update(s)
        .where(s.c.destination == bindparam("target", type_=Text), gone)
        .values(token=null(), held_until=null())
    )


@cache
def crowded(t: Tables) -> Select[bool, int]:
    """Why nothing was begun: whether there was a slot (got; it is given back here), and how many slow sends hold
    (slow).

    Parameters: target, sender, room.
    """
    slot = freed(t)
    got = select(func.count()).select_from(slot).scalar_subquery() > 0
    room: Any = bindparam("room", type_=Integer)
    return select(got.label("got"), slow_sends(t, bindparam("target", type_=Text), room, literal(SLOW)).label("slow"))


def slow_sends(
    t: Tables, destination: ColumnElement[Any], room: ColumnElement[Any], patience: ColumnElement[Any]
) -> ColumnElement[int]:
    """How many of a destination's first `room` slots are held by sends that run for `patience` seconds or longer."""
    s = t.slots
    return (
        select(func.count())
        .select_from(s)
        .where(
            s.c.destination == destination,
            s.c.slot < room,
            s.c.held_until > func.now(),
            s.c.taken_at <= func.now() - patience * SECOND,
        )
        .scalar_subquery()
    )


def make_meters(t: Tables) -> Insert:
    """Make the rows that `metered` needs. Parameter: wanted (JSON rows of destination)."""
    wanted = json_rows("wanted", destination=Text)
    return insert(t.destinations).from_select(["name"], select(wanted.c.destination)).on_conflict_do_nothing()


@cache
def metered(t: Tables) -> ReturningUpdate[Any]:
    """Take tokens from the buckets of destinations. Returns how many messages may be claimed of each.

    A bucket holds the tokens of one second, but at least one. Parameter: metered (JSON rows of destination, rate a
    second, and size: how many are wanted).
    """
    d = t.destinations
    asked = json_rows("metered", destination=Text, rate=Float, size=Integer)
    elapsed = cast(func.extract("epoch", func.clock_timestamp() - d.c.metered_at), Float)
    burst = func.greatest(asked.c.rate, 1.0)
    level = func.least(burst, func.coalesce(d.c.allowance + asked.c.rate * elapsed, burst))
    bucket = (
        select(d.c.name, level.label("level"), func.floor(func.least(asked.c.size, level)).label("granted"))
        .select_from(asked.join(d, d.c.name == asked.c.destination))
        .order_by(d.c.name)  # every claim in the same order, so that claims can't deadlock
        .with_for_update(of=d)
        .subquery("bucket")
    )
    return (
        update(d)
        .where(d.c.name == bucket.c.name)
        .values(allowance=bucket.c.level - bucket.c.granted, metered_at=func.clock_timestamp())
        .returning(d.c.name, cast(bucket.c.granted, Integer).label("granted"))
    )


def unspent(t: Tables) -> Update:
    """Put back the tokens that a claim did not need. Parameter: spare (JSON rows of destination and size)."""
    d = t.destinations
    spare = json_rows("spare", destination=Text, size=Integer)
    return update(d).where(d.c.name == spare.c.destination).values(allowance=d.c.allowance + spare.c.size)
