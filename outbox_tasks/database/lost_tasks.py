"""The statements that look for handed-over tasks which their broker has lost, or which wait there for long."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DateTime,
    Float,
    Table,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.sql import ColumnElement, Select, Update

from outbox_tasks.database.pieces import SECOND, elapsed, json_rows, probe, seconds
from outbox_tasks.database.schema import Tables, function
from outbox_tasks.database.settle import DOUBLINGS
from outbox_tasks.model import TASK_HEADER

LOOKED_AT = 1000
"""Tasks of a destination that are looked at, those that end soonest first: their queues have to be read from them."""

AT_ONCE = 10_000
"""Rows that one statement changes."""

LONGEST = 8.0
"""A task in a queue that is long waits for up to so many times `confirm_within`."""


def handed_over(t: Tables) -> Select[Any]:
    """The queues of the tasks that are handed over and do not run yet: destination, queue (null: its name is not in the
    row), count (of those looked at), ending (how many of them would be sent again within `soon` seconds), again (how
    many were), oldest (for how many seconds the first has waited), now (by the database's clock, before anything else
    is looked at). Parameters: asked (JSON rows of destination, and queue: that
    of tasks which were not stored as such), soon."""
    m = t.messages
    asked = json_rows("asked", destination=Text, queue=Text)
    some = (
        select(_queue(m).label("queue"), (m.c.locked_until < func.now() + seconds("soon")).label("ending"))
        .add_columns(m.c.outages, m.c.handed_at)
        .where(*_waits(m), m.c.destination == asked.c.destination)
        .order_by(m.c.locked_until)
        .limit(LOOKED_AT)
        .correlate(asked)
        .lateral("some")
    )
    queue = func.coalesce(some.c.queue, asked.c.queue)
    named = case((queue != literal_column("''"), queue)).label("queue")
    return (
        select(asked.c.destination, named, func.count().label("count"))
        .add_columns(func.count().filter(some.c.ending).label("ending"), func.now().label("now"))
        .add_columns(func.count().filter(some.c.outages < literal_column("0")).label("again"))
        .add_columns(elapsed(func.min(some.c.handed_at), func.now()).label("oldest"))
        .select_from(asked.join(some, true()))
        .group_by(asked.c.destination, named)
    )


def overtaken(t: Tables) -> Select[Any]:
    """What the task at the front of a queue says about those that were handed over before it. Returns head (when it was
    handed over; null if it says nothing, because an older copy of it may be in the queue) and count (how many that do
    not run were handed over more than `sure` seconds before `last`, the head of an earlier look). No row, if the tasks
    have priorities. Parameters: target (the destination), queue, made (the queue of tasks that were not stored as
    such), first (the id of the task), last, sure."""
    m = t.messages
    head = select(m.c.handed_at).where(
        probe(m.c.id, bindparam("first", type_=Uuid)), *_waits(m), m.c.outages >= literal_column("0")
    )
    priority = func.coalesce(_envelope(m).op("->>")(literal_column("'priority'")), literal_column("'0'"))
    some = (
        select(m.c.handed_at, (priority != literal_column("'0'")).label("apart"))
        .where(*_waits(m), m.c.destination == bindparam("target", type_=Text))
        .where(func.coalesce(_queue(m), bindparam("made", type_=Text)) == bindparam("queue", type_=Text))
        .order_by(m.c.locked_until)
        .limit(LOOKED_AT)
        .subquery("some")
    )
    earlier = some.c.handed_at < bindparam("last", type_=DateTime(True)) - seconds("sure")
    count = func.count().filter(earlier).label("count")
    return select(head.scalar_subquery().label("head"), count).having(func.count().filter(some.c.apart) == 0)


def by_task(t: Tables) -> Select[Any]:
    """The tasks that are handed over and do not run yet: destination, task, count, and oldest (for how many seconds the
    first has waited). Of so many that were handed over first in their destinations as one statement changes."""
    m = t.messages
    columns = (m.c.destination, m.c.event_type, m.c.handed_at)
    some = select(*columns).where(*_waits(m)).order_by(m.c.destination, m.c.handed_at).limit(AT_ONCE).subquery("some")
    oldest = elapsed(func.min(some.c.handed_at), func.now()).label("oldest")
    return select(some.c.destination, some.c.event_type.label("task"), func.count().label("count"), oldest).group_by(
        some.c.destination, some.c.event_type
    )


def end_waits(t: Tables) -> Update:
    """The broker has lost these tasks: they are due now. Changes `AT_ONCE` at most.

    Parameters: target (the destination), queue (null: all), made (the queue of tasks that were not stored as such),
    before (only those that were handed over before this time), sure (seconds earlier; twice as long after each time
    that it was sent again, so that a mistake does not repeat itself quickly).
    """
    m, queue = t.messages, bindparam("queue", type_=Text)
    sure = bindparam("sure", type_=Float) * func.power(2, -func.greatest(m.c.outages, -DOUBLINGS)) * SECOND
    theirs = func.coalesce(_queue(m), bindparam("made", type_=Text)) == queue
    rules = (
        m.c.locked_until > func.now(),
        m.c.handed_at < bindparam("before", type_=DateTime(True)) - sure,
        case((cast(queue, Text).is_(None), true()), else_=theirs),
    )
    return _changed(t, rules, func.clock_timestamp())


def wait_on(t: Tables) -> Update:
    """The broker still has many tasks: those that would be sent again within `soon` seconds wait for `within` seconds
    more, up to `LONGEST` times as long in all. Changes `AT_ONCE` at most. Parameters: target, queue, made, soon,
    within."""
    m = t.messages
    longest = func.least(m.c.handed_at, func.now()) + bindparam("within", type_=Float) * LONGEST * SECOND
    rules = (
        m.c.locked_until < func.now() + seconds("soon"),
        m.c.locked_until < longest,
        func.coalesce(_queue(m), bindparam("made", type_=Text)) == bindparam("queue", type_=Text),
    )
    return _changed(t, rules, func.least(func.clock_timestamp() + seconds("within"), longest))


def _changed(t: Tables, rules: tuple[ColumnElement[bool], ...], until: ColumnElement[Any]) -> Update:
    m = t.messages
    found = (
        select(m.c.id)
        .where(*_waits(m), m.c.destination == bindparam("target", type_=Text), *rules)
        .order_by(m.c.locked_until)
        .limit(AT_ONCE)
        .with_for_update(skip_locked=True)
        .cte("found")
    )
    return update(m).where(probe(m.c.id, found.c.id)).values(locked_until=until)


def _waits(m: Table) -> tuple[ColumnElement[bool], ...]:
    """As the index has it."""
    return m.c.handed_at.is_not(None), ~m.c.begun


def _envelope(m: Table) -> ColumnElement[Any]:
    """What was stored with a task: see `wire.celery_message`. Empty, if it can't be read. Null: it was not stored as
    one."""
    stored = m.c.headers[literal_column(f"'{TASK_HEADER}'", Text)].astext
    return function(m.schema, "outbox_envelope")(stored)


def _queue(m: Table) -> ColumnElement[Any]:
    """The queue of a stored task: the one that Celery would have declared, or that the default exchange leads to. An
    empty text: another exchange decides. Null: it was not stored as a task."""
    envelope = _envelope(m)

    def said(path: str) -> ColumnElement[Any]:
        return envelope.op("#>>")(literal_column(f"'{{{path}}}'"))

    plain = case((said("exchange") == literal_column("''"), said("routing_key")))
    return case((envelope.is_not(None), func.coalesce(said("declare,0,queue,name"), plain, literal_column("''"))))
