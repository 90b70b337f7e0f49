"""The statements that find out whether there is anything to claim, before beat sends a claim, and when the next message
is due."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, and_, case, exists, false, func, or_, select, true, union_all
from sqlalchemy.sql import ColumnElement, FromClause, Select

from outbox_tasks.database import hops
from outbox_tasks.database.pieces import PRIORITIES, as_priority, epoch, pending, seconds
from outbox_tasks.database.schema import Tables

KEYED = 100
"""Messages with keys that are looked at. Their index does not have the times, so more would cost too much."""


def anything_due(t: Tables) -> Select[Any]:
    """Whether a message is due within `ahead` seconds. If `ahead` is longer than a lease, leased messages count too.

    With more than `KEYED` messages that have keys, the answer is always yes.
    """
    m = t.messages
    soon = m.c.locked_until <= func.now() + seconds("ahead")
    lanes, of_lane = _lanes(m)
    due = select(m.c.id).where(*of_lane, soon).limit(1).lateral("due")
    found = exists(select(due.c.id).select_from(lanes.join(due, true())))
    keyed = select((pending(m) & soon).label("due")).where(m.c.key.is_not(None)).limit(KEYED).subquery("keyed")
    many = select(or_(func.count() == KEYED, func.coalesce(func.bool_or(keyed.c.due), false()))).select_from(keyed)
    return select(or_(found, many.scalar_subquery()))


def next_due(t: Tables) -> Select[Any]:
    """In how many seconds the next message is due, if that is within `ahead` seconds; else null. Of messages with keys
    only `KEYED` count."""
    m = t.messages
    soon = and_(m.c.locked_until > func.now(), m.c.locked_until <= func.now() + seconds("ahead"))
    lanes, of_lane = _lanes(m)
    due = select(m.c.locked_until).where(*of_lane, soon).order_by(m.c.locked_until).limit(1).lateral("due")
    unkeyed = select(func.min(due.c.locked_until)).select_from(lanes.join(due, true())).scalar_subquery()
    at = case((pending(m) & soon, m.c.locked_until)).label("at")
    some = select(at).where(m.c.key.is_not(None)).limit(KEYED).subquery("some")
    keyed = select(func.min(some.c.at)).scalar_subquery()
    return select(epoch(func.least(unkeyed, keyed)) - epoch(func.clock_timestamp()))


def _lanes(m: Table) -> tuple[FromClause, tuple[ColumnElement[bool], ...]]:
    """Each destination of pending messages without a key, with each priority, and what holds for the messages there:
    their index has these in the order in which they are due."""
    unkeyed = (pending(m), m.c.key.is_(None))
    place = hops.destinations(m, unkeyed, "place")
    lane = union_all(*(select(as_priority(number)) for number in PRIORITIES.values())).subquery("lane")
    of_lane = (*unkeyed, m.c.destination == place.c.destination, m.c.priority == lane.c.priority)
    return place.join(lane, true()), of_lane
