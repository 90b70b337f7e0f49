"""The breaker's statements. The circuit of a destination that is out of reach is open: the whole cluster sends nothing
to it. From time to time one message tries it: the probe. When a probe gets through, all go on.

A row of `outbox_destinations` is closed (the same as no row), open (`opened_at` is set, until `pause_until`), being
tried (`probe` is the lease of the claim that may), or paused by a person (`paused_at` is set).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    Float,
    Integer,
    Text,
    Uuid,
    bindparam,
    case,
    false,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql import ColumnElement, Select, Update
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from outbox_tasks.database.pieces import SECOND, elapsed, json_rows, seconds
from outbox_tasks.database.schema import Tables
from outbox_tasks.database.slots import slow_sends


def admit(t: Tables) -> Select[Any]:
    """Of these destinations, those that can't be claimed for as usual: whether they are paused or their circuit is
    open (shut), whether this claim may take one message as a probe (tried), and how many of their slots slow sends hold
    (slow).

    Only one claim may probe, and the next one only after another pause. Parameters: asked (JSON rows of destination,
    room: its slots, and patience: seconds after which a send is slow); token (the lease that the claim will use), hold
    (seconds that the probe may take).
    """
    d = t.destinations
    asked = json_rows("asked", destination=Text, room=Integer, patience=Float)
    tried = (
        update(d)
        .where(d.c.name == asked.c.destination, _open(t), d.c.paused_at.is_(None), d.c.pause_until <= func.now())
        .values(probe=bindparam("token", type_=Uuid), pause_until=func.clock_timestamp() + seconds("hold"))
        .returning(d.c.name)
        .cte("tried")
    )
    slow = slow_sends(t, asked.c.destination, asked.c.room, asked.c.patience)
    found = (
        select(
            asked.c.destination.label("name"),
            func.coalesce(or_(_open(t), d.c.paused_at.is_not(None)), false()).label("shut"),
            tried.c.name.is_not(None).label("tried"),
            slow.label("slow"),
        )
        .select_from(asked.outerjoin(d, d.c.name == asked.c.destination))
        .outerjoin(tried, tried.c.name == asked.c.destination)
        .subquery("found")
    )
    return select(found).where(or_(found.c.shut, found.c.slow > 0))


def untried(t: Tables) -> Update:
    """Give the right to probe back: no message was due. Parameters: target (the destination), token."""
    d = t.destinations
    return (
        update(d)
        .where(d.c.name == bindparam("target", type_=Text), d.c.probe == bindparam("token", type_=Uuid))
        .values(probe=null(), pause_until=func.clock_timestamp())
    )


@cache
def tripped(t: Tables) -> ReturningInsert[Any]:
    """Count a send that found the destination out of reach. The `enough`-th in a row opens the breaker.

    While it is open, only the failure of the probe counts, and makes the pause longer: other sends began before.
    Parameters: target (the destination), token, reason_code, reason, enough, pause, longest (seconds).
    """
    d = t.destinations
    add = insert(d).values(
        name=bindparam("target", type_=Text),
        failures=1,
        failed_at=func.clock_timestamp(),
        error_code=bindparam("reason_code", type_=Text),
        error=bindparam("reason", type_=Text),
        opened_at=case((_enough(literal(1)), func.clock_timestamp())),
        pause_until=case((_enough(literal(1)), func.clock_timestamp() + _pause(literal(1)))),
    )
    failures = d.c.failures + 1
    counts = or_(d.c.opened_at.is_(None), d.c.probe == bindparam("token", type_=Uuid))
    return add.on_conflict_do_update(
        index_elements=[d.c.name],
        set_={
            "failures": case((counts, failures), else_=d.c.failures),
            "failed_at": func.clock_timestamp(),
            "error_code": add.excluded.error_code,
            "error": add.excluded.error,
            "opened_at": case((_open(t), d.c.opened_at), (_enough(failures), func.clock_timestamp())),
            "pause_until": case(
                (counts & _enough(failures), func.clock_timestamp() + _pause(failures)), else_=d.c.pause_until
            ),
            "probe": case((counts, null()), else_=d.c.probe),
        },
    ).returning(_open(t).label("open"), d.c.failures, d.c.pause_until)


@cache
def recovered(t: Tables) -> ReturningUpdate[Any]:
    """Close the breaker, if it is not closed: the destination has answered. Parameter: target."""
    d = t.destinations
    return (
        update(d)
        .where(d.c.name == bindparam("target", type_=Text), or_(d.c.failures > 0, _open(t)))
        .values(failures=0, opened_at=null(), pause_until=null(), probe=null(), recovered_at=func.clock_timestamp())
        .returning(d.c.name)
    )


def states(t: Tables) -> Select[Any]:
    """The destinations that were in trouble or were paused, and their state now."""
    d = t.destinations
    state = case(
        (d.c.paused_at.is_not(None), "paused"),
        (_open(t) & (d.c.pause_until > func.now()) & d.c.probe.is_(None), "open"),
        (_open(t), "trying"),
        else_="closed",
    )
    return select(
        d.c.name, state.label("state"), d.c.failures, d.c.error_code, d.c.error, d.c.failed_at, d.c.opened_at,
        d.c.pause_until, d.c.recovered_at, d.c.paused_at, d.c.paused_by, d.c.paused_why,
        elapsed(d.c.opened_at, func.now()).label("open_for"), elapsed(func.now(), d.c.pause_until).label("next_try"),
    ).order_by(d.c.name)  # fmt: skip


def _open(t: Tables) -> ColumnElement[bool]:
    return t.destinations.c.opened_at.is_not(None)


def _enough(failures: ColumnElement[Any]) -> ColumnElement[bool]:
    return failures >= bindparam("enough", type_=Integer)


def _pause(failures: ColumnElement[Any]) -> ColumnElement[Any]:
    """pause · 2^(failures - enough), at most the longest."""
    doublings = func.least(failures - bindparam("enough", type_=Integer), 30)
    return func.least(bindparam("longest", type_=Float), bindparam("pause", type_=Float) * func.power(2, doublings)) * (
        SECOND
    )
