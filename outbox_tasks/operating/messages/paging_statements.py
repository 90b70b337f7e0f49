"""The statements that read a list of messages page by page.

Each goes along an index from a place to either side, in an order that does not change while messages are sent: so no
message comes twice or is left out. It looks at some rows only. If these were not all, it says where it ended.

Parameters of each: those of `find_statements`, but for high and top; and the place where the page begins. Each row has
`looked`: how many rows were looked at; `reached`: when the last of them was written, and its place, as `end_` and the
names of the order's columns; null: there are no more. A row without an id means that nothing was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    Integer,
    Text,
    Uuid,
    bindparam,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.sql import ColumnElement, FromClause, Select

from outbox_tasks.database.pieces import brief
from outbox_tasks.database.schema import Tables, error_group
from outbox_tasks.database.states import is_dead
from outbox_tasks.operating.messages.find_statements import SHOWN, columns, in_lane, places, wanted

LOOK: ColumnElement[Any] = bindparam("look", type_=Integer)


def by_id(t: Tables, *, waiting: bool, archived: bool, newer: bool) -> Select[Any]:
    """Messages by id, in one or both tables: an id says when a message was written, and stays when it is sent.

    Both tables in one statement: else a message that is sent between two statements would be in neither. Parameters:
    low and high (ids, both included).
    """
    parts = []
    m, a = t.messages, t.archive
    if waiting:
        finished = cast(null(), a.c.finished_at.type).label("finished_at")
        parts.append((m, [*columns(m), finished, in_lane("waiting")]))
    if archived:
        none = (cast(null(), m.c[name].type).label(name) for name in ("locked_until", "dead_at"))
        parts.append((a, [*(a.c[name] for name in SHOWN), a.c.state, *none, a.c.finished_at, in_lane("archived")]))
    low, high = bindparam("low", type_=Uuid), bindparam("high", type_=Uuid)
    some = []
    for table, shown in parts:
        order = _ordered([table.c.id], newer)
        # The archive may have an id several times: a replay writes a message again.
        here = select(*shown).where(table.c.id >= low, table.c.id <= high).order_by(*order)
        some.append(here.fetch(LOOK, with_ties=True))
    return _page(some, ("id",), newer)


def of_key(t: Tables, *, newer: bool) -> Select[Any]:
    """Messages of one key that are not yet sent, by seq. Parameters: seq and last (id), where the page begins."""
    m = t.messages
    place = places(m, (m.c.key.is_not(None),))
    own = (m.c.destination == place.c.name, m.c.key == bindparam("key", type_=Text))
    here = _beyond((m.c.seq, m.c.id), (bindparam("seq", type_=BigInteger), bindparam("last", type_=Uuid)), newer)
    order = _ordered([m.c.key, m.c.seq, m.c.id], newer)
    return _page([_of_each(m, place, (*own, here), order)], ("seq", "id"), newer)


def dead_of_destinations(t: Tables, *, newer: bool) -> Select[Any]:
    """Dead letters of each destination by their death. Parameters: time (as text) and last (id), where the page
    begins."""
    m = t.messages
    place = places(m, (is_dead(m),))
    own = (is_dead(m), m.c.destination == place.c.name, _died(m, newer))
    return _page([_of_each(m, place, own, _ordered([m.c.dead_at, m.c.id], newer))], ("dead_at", "id"), newer)


def dead_of_group(t: Tables, *, newer: bool) -> Select[Any]:
    """Dead letters of one error group by their death. Parameters: as for `dead_of_destinations`, and group."""
    m = t.messages
    own = (is_dead(m), error_group(m) == bindparam("group", type_=Text), _died(m, newer))
    some = select(*columns(m), _unfinished(), in_lane("group")).where(*own)
    return _page([some.order_by(*_ordered([m.c.dead_at, m.c.id], newer)).limit(LOOK)], ("dead_at", "id"), newer)


def _died(m: FromClause, newer: bool) -> ColumnElement[bool]:
    # As text: a row may have an infinite time, for which Python has no value.
    time = cast(bindparam("time", type_=Text), DateTime(True))
    return _beyond((m.c.dead_at, m.c.id), (time, bindparam("last", type_=Uuid)), newer)


def _beyond(
    place: Sequence[ColumnElement[Any]], begin: Sequence[ColumnElement[Any]], newer: bool
) -> ColumnElement[bool]:
    here, there = tuple_(*place), tuple_(*begin)
    return here > there if newer else here < there


def _ordered(order: Sequence[ColumnElement[Any]], newer: bool) -> list[ColumnElement[Any]]:
    return [column.asc() if newer else column.desc() for column in order]


def _unfinished() -> ColumnElement[Any]:
    return cast(null(), DateTime(True)).label("finished_at")


def _of_each(
    m: Any, place: FromClause, own: Sequence[ColumnElement[bool]], order: Sequence[ColumnElement[Any]]
) -> Select[Any]:
    some = select(*columns(m), _unfinished(), place.c.name.label("lane")).where(*own).order_by(*order).limit(LOOK)
    each = some.correlate(place).lateral("each")
    return select(each).select_from(place.join(each, true()))


def _page(parts: Sequence[Select[Any]], by: Sequence[str], newer: bool) -> Select[Any]:
    """The wanted rows of these parts, in one order, as far as every part was looked at."""
    seen = union_all(*(select(part.subquery()) for part in parts)).cte("seen").prefix_with("MATERIALIZED")
    order = _ordered([seen.c[name] for name in by], newer)
    number = func.row_number().over(partition_by=seen.c.lane, order_by=order).label("number")
    numbered = select(*(seen.c[name].label(f"end_{name}") for name in by), seen.c.created_at, number).subquery("part")
    ends = [numbered.c[f"end_{name}"] for name in by]
    # A part with so many rows was cut there. Beyond the first cut, rows are missing.
    cut = select(*ends, numbered.c.created_at.label("reached")).where(numbered.c.number == LOOK)
    end = cut.order_by(*_ordered(ends, newer)).limit(1).cte("cut")
    looked = select(func.count().label("looked")).select_from(seen).subquery("looked")

    place, last = tuple_(*(seen.c[name] for name in by)), tuple_(*(end.c[f"end_{name}"] for name in by))
    here = or_(end.c.reached.is_(None), place <= last if newer else place >= last)
    # Of the rows of one id: the one that waits, or else the last one.
    same, latest = [seen.c[name] for name in by], seen.c.finished_at.desc().nulls_first()
    copy = func.row_number().over(partition_by=same, order_by=latest).label("copy")
    some = select(seen, copy).select_from(seen.outerjoin(end, true())).where(here, *wanted(seen.c)).subquery("some")
    shown = [c for c in some.c if c.name not in ("lane", "copy", "last_error")]
    first = select(*shown, brief(some.c.last_error).label("last_error")).where(some.c.copy == literal_column("1"))
    order = _ordered([some.c[name] for name in by], newer)
    found = first.order_by(*order).limit(bindparam("size", type_=Integer)).subquery("found")
    page = select(looked, end, found).select_from(looked.outerjoin(end, true()).outerjoin(found, true()))
    return page.order_by(*_ordered([found.c[name] for name in by], newer))
