"""In which state a message is, and how to hop along an index from one value to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import CTE, Text, and_, case, func, literal, literal_column, or_, select, true
from sqlalchemy.sql import ColumnElement, FromClause

LANES = (1, 0, -1)
"""The priorities, as the rows have them."""


def is_dead(m: FromClause) -> ColumnElement[bool]:
    """Written out, not a parameter: only then can every plan use the partial index."""
    return m.c.status == literal_column("'dead'")


def state_of(m: FromClause) -> ColumnElement[str]:
    """What a row of outbox_messages is called, as the view outbox_all has it."""
    leased = and_(m.c.lease.is_not(None), m.c.locked_until > func.now(), or_(m.c.begun, m.c.attempts == 0))
    return case(
        (is_dead(m), literal_column("'dead'", Text)),
        (leased, literal_column("'leased'", Text)),
        (m.c.attempts > 0, literal_column("'retrying'", Text)),
        (m.c.locked_until > func.now(), literal_column("'scheduled'", Text)),
        else_=literal_column("'pending'", Text),
    )


def hops(
    column: ColumnElement[Any],
    kind: Iterable[ColumnElement[bool]],
    name: str,
    past: ColumnElement[Any] | None = None,
    most: ColumnElement[Any] | None = None,
) -> CTE:
    """The different values of a column that leads an index, one probe each: all, or at most so many after `past`."""
    kind = tuple(kind)
    found = (column > past,) if past is not None else ()
    first = select(column.label("name"), literal(1).label("hop")).where(*kind, *found).order_by(column).limit(1)
    walk = first.cte(name, recursive=True)
    following = select(column.label("name")).where(*kind, column > walk.c.name).order_by(column).limit(1)
    after = following.correlate(walk).lateral("following")
    step = select(after.c.name, walk.c.hop + 1).select_from(walk.join(after, true()))
    return walk.union_all(step if most is None else step.where(walk.c.hop < most))
