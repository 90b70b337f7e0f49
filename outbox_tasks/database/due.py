"""The statement with which beat finds out, before it sends a claim, whether there is anything to claim."""

from __future__ import annotations

from typing import Any

from sqlalchemy import exists, false, func, or_, select, true, union_all
from sqlalchemy.sql import Select

from outbox_tasks.database import hops
from outbox_tasks.database.pieces import PRIORITIES, as_priority, pending, seconds
from outbox_tasks.database.schema import Tables

KEYED = 100
"""Messages with keys that are looked at. Their index does not have the times, so more would cost too much."""


def anything_due(t: Tables) -> Select[Any]:
    """Whether a message is due within `ahead` seconds. If `ahead` is longer than a lease, leased messages count too.

    With more than `KEYED` messages that have keys, the answer is always yes.
    """
    m = t.messages
    soon = m.c.locked_until <= func.now() + seconds("ahead")
    unkeyed = (pending(m), m.c.key.is_(None))
    place = hops.destinations(m, unkeyed, "place")
    lane = union_all(*(select(as_priority(number)) for number in PRIORITIES.values())).subquery("lane")
    of_lane = (m.c.destination == place.c.destination, m.c.priority == lane.c.priority)
    due = select(m.c.id).where(*unkeyed, *of_lane, soon).limit(1).lateral("due")
    found = exists(select(due.c.id).select_from(place.join(lane, true()).join(due, true())))
    keyed = select((pending(m) & soon).label("due")).where(m.c.key.is_not(None)).limit(KEYED).subquery("keyed")
    many = select(or_(func.count() == KEYED, func.coalesce(func.bool_or(keyed.c.due), false()))).select_from(keyed)
    return select(or_(found, many.scalar_subquery()))
