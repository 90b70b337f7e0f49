"""Finds the distinct values of a column. It hops along an index that begins with this column: one probe for each value.

PostgreSQL has no such scan of its own: a DISTINCT reads every row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import CTE, Table, literal, select, true
from sqlalchemy.sql import ColumnElement


def destinations(m: Table, kind: Iterable[ColumnElement[bool]], name: str) -> CTE:
    """The destinations of these messages, and a null at the end."""
    kind, column = tuple(kind), m.c.destination
    first = select(column).where(*kind).order_by(column).limit(1)
    walk = select(first.scalar_subquery().label("destination")).cte(name, recursive=True)
    following = select(column).where(*kind, column > walk.c.destination).order_by(column).limit(1).correlate(walk)
    return walk.union_all(select(following.scalar_subquery()).where(walk.c.destination.is_not(None)))


def values(
    column: ColumnElement[Any],
    kind: Iterable[ColumnElement[bool]],
    name: str,
    past: ColumnElement[Any] | None = None,
    most: ColumnElement[Any] | None = None,
) -> CTE:
    """The values, as `name`: all, or at most `most` of those after `past`."""
    kind = tuple(kind)
    found = (column > past,) if past is not None else ()
    first = select(column.label("name"), literal(1).label("hop")).where(*kind, *found).order_by(column).limit(1)
    walk = first.cte(name, recursive=True)
    following = select(column.label("name")).where(*kind, column > walk.c.name).order_by(column).limit(1)
    after = following.correlate(walk).lateral("following")
    step = select(after.c.name, walk.c.hop + 1).select_from(walk.join(after, true()))
    return walk.union_all(step if most is None else step.where(walk.c.hop < most))
