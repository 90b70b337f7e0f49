"""The statements that find messages. None reads a whole table: each looks at some rows of an index, in its order, and
says whether there were more.

Ids have the time in them (version 7), so they find the newest rows. Applications may choose other ids: nearly all of
those are greater than any id with a time, and are looked at separately.

Parameters of each search: size (rows wanted), look (rows of an index to look at); and, null for any, states (array),
destination, pattern (of the event type, for LIKE), key, code, older and newer (age in seconds). Each row has `looked`:
how many rows were looked at; `cut`: whether there were more; and `back_to`: the time of the last of the newest. A row
without an id means that nothing was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Float,
    Integer,
    Table,
    Text,
    Uuid,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.sql import ColumnElement, CompoundSelect, FromClause, Select

from outbox_tasks.database import hops
from outbox_tasks.database.pieces import PRIORITIES, SECOND, as_priority, brief, pending, probe
from outbox_tasks.database.schema import Tables, error_group
from outbox_tasks.database.states import is_dead, state_of
from outbox_tasks.model import EVENT_ID
from outbox_tasks.operating import audit

COUNTED = 100_000
"""Messages are counted up to this."""

SHOWN = (
    "id", "seq", "destination", "key", "event_type", "attempts", "last_error_code", "last_error", "created_at",
    "locked_by",
)  # fmt: skip

CONTENTS = ("payload", "headers", "history")


def columns(m: Table) -> list[ColumnElement[Any]]:
    """The columns that are shown, without payload and history."""
    return [*(m.c[name] for name in SHOWN), state_of(m).label("state"), m.c.locked_until, m.c.dead_at]


def newest(t: Tables) -> Select[Any]:
    """Messages that are not yet sent: the newest, and the oldest, which are being sent.

    Parameters: as above; high and top (ids: the last one that is old enough, and the last one with a time in it).
    """
    m = t.messages
    latest, own_ids = _by_time(m, columns(m))
    latest_rows = latest.cte("latest")
    before = m.c.id < select(latest_rows.c.id).order_by(latest_rows.c.id).limit(1).scalar_subquery()
    oldest = select(*columns(m), in_lane("oldest")).where(before).order_by(m.c.id).limit(_look())
    return _found([select(latest_rows), own_ids, oldest], "created_at")


def newest_archived(t: Tables) -> Select[Any]:
    """Messages that were sent or discarded, the newest. Parameters: as for `newest`."""
    a = t.archive
    return _found(_by_time(a, [*(a.c[name] for name in SHOWN), a.c.state, a.c.finished_at]), "created_at")


def waiting(t: Tables) -> Select[Any]:
    """Messages without a key, of each lane of a destination: the last ones to get due, and the next ones."""
    m = t.messages
    kind = (pending(m), m.c.key.is_(None))
    lanes = (select(as_priority(n)) for n in PRIORITIES.values())
    lane, place = union_all(*lanes).subquery("lane"), places(m, kind)
    own = (*kind, m.c.destination == place.c.name, m.c.priority == lane.c.priority)
    parts = []
    for name, when, order in (
        ("later", m.c.locked_until > func.now(), m.c.locked_until),
        ("due", m.c.locked_until <= func.now(), m.c.locked_until.desc()),
    ):
        tag = func.concat_ws(" ", literal(name), lane.c.priority, place.c.name).label("lane")
        some = select(*columns(m), tag).where(*own, when).order_by(order).limit(_look())
        each = some.correlate(place, lane).lateral(name)
        parts.append(select(each).select_from(place.join(lane, true()).join(each, true())))
    return _found(parts, "created_at")


def of_key(t: Tables) -> Select[Any]:
    """Messages of one key that are not yet sent, to any destination, the latest first."""
    m = t.messages
    place = places(m, (m.c.key.is_not(None),))
    own = (m.c.destination == place.c.name, m.c.key == bindparam("key", type_=Text))
    return _found([_of_each(m, place, own, (m.c.key.desc(), m.c.seq.desc()))], "created_at")


def dead_of_destinations(t: Tables) -> Select[Any]:
    """Dead letters of each destination, the last to die first."""
    m = t.messages
    place = places(m, (is_dead(m),))
    own = (is_dead(m), m.c.destination == place.c.name)
    return _found([_of_each(m, place, own, (m.c.dead_at.desc(),))], "dead_at")


def dead_of_group(t: Tables) -> Select[Any]:
    """Dead letters of one error group, the last to die first. Parameters: as above, and group."""
    m = t.messages
    own = (is_dead(m), error_group(m) == bindparam("group", type_=Text))
    some = select(*columns(m), in_lane("group")).where(*own).order_by(m.c.dead_at.desc()).limit(_look())
    return _found([some], "dead_at")


def groups(t: Tables) -> Select[Any]:
    """The error groups: the number of dead letters (counted up to `COUNTED`), when the first and the last died, and the
    last one. One probe of the index for each group.

    Parameters: past (return the groups after this one), most (groups at most), destination (null: all; groups of other
    destinations have no count).
    """
    m = t.messages
    group, destination = error_group(m), bindparam("destination", type_=Text)
    walk = hops.values(
        group, (is_dead(m),), "walk", past=bindparam("past", type_=Text), most=bindparam("most", type_=Integer)
    )
    own = (is_dead(m), group == walk.c.name)
    about = (m.c.id, m.c.destination, m.c.event_type, m.c.last_error_code, brief(m.c.last_error).label("last_error"))
    last = select(*about, m.c.dead_at).where(*own).order_by(m.c.dead_at.desc()).limit(1).correlate(walk).lateral("last")
    first = select(m.c.dead_at).where(*own).order_by(m.c.dead_at).limit(1).correlate(walk).scalar_subquery()
    some = select(m.c.id).where(*own).limit(COUNTED).correlate(walk).subquery("some")
    ours = or_(destination.is_(None), last.c.destination == destination)
    count = select(func.count()).select_from(some).scalar_subquery()
    return (
        select(walk.c.name.label("group"), last)
        .add_columns(case((ours, first)).label("first_at"), case((ours, count)).label("count"))
        .select_from(walk.join(last, true()))
        .order_by(walk.c.name)
    )


def everything(t: Tables) -> CompoundSelect[Any]:
    """Everything about one message, with `size`, the bytes of its payload. Parameters: id; part (bytes of the payload
    wanted; null: all; 0: for somebody who may not see contents: no headers and no history either, but the event's id),
    start (the bytes before the part)."""
    m, a, id = t.messages, t.archive, bindparam("id", type_=Uuid)
    both = [c.name for c in a.c if c.name in m.c and c.name not in CONTENTS]
    own = ("locked_until", "lease", "begun", "dead_at", "outages", "deliver_at", "latest", "priority",
           "handed_at")  # fmt: skip
    hot = select(*(m.c[name] for name in (*both, *own)), *_contents(m), state_of(m).label("state"))
    no = (cast(null(), m.c[name].type).label(name) for name in own)
    done = select(*(a.c[name] for name in both), *no, *_contents(a), a.c.state)
    group = case((is_dead(m), error_group(m))).label("group")
    finished = cast(null(), a.c.finished_at.type).label("finished_at")
    return union_all(
        hot.add_columns(finished, group).where(m.c.id == id),
        done.add_columns(a.c.finished_at, cast(null(), Text)).where(a.c.id == id),
    )


def _contents(m: Table) -> Iterator[ColumnElement[Any]]:
    """What the application wrote, or what quotes it. What nobody may see is not read."""
    part = cast(bindparam("part", type_=Integer), Integer)
    piece = func.substr(m.c.payload, bindparam("start", type_=Integer) + literal_column("1"), part)
    yield case((part.is_(None), m.c.payload), (part > literal_column("0"), piece)).label("payload")
    yield func.octet_length(m.c.payload).label("size")
    may = func.coalesce(part, literal_column("1")) > literal_column("0")
    event = literal_column(f"'{EVENT_ID}'", Text)
    only = func.jsonb_strip_nulls(func.jsonb_build_object(event, m.c.headers.op("->")(event)))
    yield case((may, m.c.headers), else_=only).label("headers")
    yield case((may, m.c.history)).label("history")


def ahead(t: Tables) -> Select[Any]:
    """What a message with a key waits for: the first message of its key, and how many are before it, counted up to
    `COUNTED`. Parameters: destination, key, seq; blocks (whether dead messages hold up their key)."""
    m, seq = t.messages, bindparam("seq", type_=BigInteger)
    own = (m.c.destination == bindparam("destination", type_=Text), m.c.key == bindparam("key", type_=Text))
    before = (*own, m.c.seq < seq, or_(bindparam("blocks", type_=Boolean), pending(m)))
    some = select(m.c.id).where(*before).order_by(m.c.key, m.c.seq).limit(COUNTED).subquery("some")
    count = select(func.count()).select_from(some).scalar_subquery()
    columns = (m.c.id, state_of(m).label("state"), m.c.dead_at, m.c.locked_until, m.c.last_error_code)
    first = select(*columns, count.label("count")).where(*before)
    return first.order_by(m.c.key, m.c.seq).limit(1)


def states(t: Tables) -> CompoundSelect[Any]:
    """The states of these messages, as far as they exist. Parameter: ids (array)."""
    m, a = t.messages, t.archive
    asked = func.unnest(bindparam("ids", type_=ARRAY(Uuid))).table_valued("id", name="asked").render_derived()
    hot = select(cast(m.c.id, Text).label("id"), state_of(m).label("state"), m.c.destination)
    done = select(cast(a.c.id, Text), a.c.state, a.c.destination)
    return union_all(
        hot.select_from(asked.join(m, probe(m.c.id, asked.c.id))),
        done.select_from(asked.join(a, probe(a.c.id, asked.c.id))),
    )


def became(t: Tables) -> CompoundSelect[Any]:
    """What became of the messages that a redrive has changed, as far as the audit keeps their ids: state, code (of the
    last error), count and id (one of them); and a row without a state: how many ids there are. Parameter: entry."""
    m, a = t.messages, t.archive
    kept = audit.changed_ids(t).cte("kept")
    code = case((or_(is_dead(m), m.c.attempts > 0), m.c.last_error_code))  # not the one from before
    hot = select(state_of(m).label("state"), code.label("code"), m.c.id)
    # With the time, PostgreSQL looks into few days of the archive.
    done = select(a.c.state, cast(null(), Text), a.c.id).select_from(kept.join(a, probe(a.c.id, kept.c.id)))
    found = union_all(
        hot.select_from(kept.join(m, probe(m.c.id, kept.c.id))), done.where(a.c.finished_at >= kept.c.at)
    ).subquery("found")
    one = cast(func.min(cast(found.c.id, Text)), Uuid)
    groups = select(found.c.state, found.c.code, func.count().label("count"), one.label("id"))
    return union_all(
        groups.group_by(found.c.state, found.c.code),
        select(cast(null(), Text), cast(null(), Text), func.count(), cast(null(), Uuid)).select_from(kept),
    )


def wanted(c: Any, now: ColumnElement[Any] | None = None) -> list[ColumnElement[bool]]:
    """The conditions on a row; `c` are its columns. `now`: the time from which ages count. Parameters: see above."""
    now = func.now() if now is None else now
    asked = ("states", "destination", "pattern", "key", "code", "older", "newer")
    p: dict[str, Any] = {name: bindparam(name, type_=Text) for name in asked}
    p["states"] = bindparam("states", type_=ARRAY(Text))
    # With a cast: PostgreSQL can't infer the type of a null.
    p |= {name: cast(bindparam(name, type_=Float), Float) for name in ("older", "newer")}
    rules = {
        "states": c.state == any_(p["states"]),
        "destination": c.destination == p["destination"],
        "pattern": c.event_type.like(p["pattern"]),
        "key": c.key == p["key"],
        "code": c.last_error_code == p["code"],
        "older": c.created_at <= now - p["older"] * SECOND,
        "newer": c.created_at >= now - p["newer"] * SECOND,
    }
    return [or_(p[name].is_(None), rule) for name, rule in rules.items()]


def _look() -> ColumnElement[Any]:
    return bindparam("look", type_=Integer)


def in_lane(name: str) -> ColumnElement[str]:
    """Names a part of the rows. A part with `look` rows was cut: there may be more."""
    return literal_column(f"'{name}'", Text).label("lane")


def _by_time(table: Table, shown: list[ColumnElement[Any]]) -> list[Select[Any]]:
    id, high, top = table.c.id, bindparam("high", type_=Uuid), bindparam("top", type_=Uuid)
    lanes = (("newest", id <= high), ("own ids", id > top))
    return [select(*shown, in_lane(n)).where(part).order_by(id.desc()).limit(_look()) for n, part in lanes]


def places(m: Table, kind: Iterable[ColumnElement[bool]]) -> FromClause:
    """The destinations that have such messages; or only the wanted one."""
    walk = hops.values(m.c.destination, kind, "walk")
    name = bindparam("destination", type_=Text)
    return select(walk.c.name).where(or_(name.is_(None), walk.c.name == name)).subquery("place")


def _of_each(
    m: Table, place: FromClause, own: Iterable[ColumnElement[bool]], order: Iterable[ColumnElement[Any]]
) -> Select[Any]:
    some = select(*columns(m), place.c.name.label("lane")).where(*own).order_by(*order).limit(_look())
    each = some.correlate(place).lateral("each")
    return select(each).select_from(place.join(each, true()))


def _found(parts: list[Select[Any]], by: str) -> Select[Any]:
    """The wanted rows of these parts, the latest first."""
    # Each in parentheses of its own, with its order and its limit.
    seen = union_all(*(select(part.subquery()) for part in parts)).cte("seen").prefix_with("MATERIALIZED")
    full = select(seen.c.lane).group_by(seen.c.lane).having(func.count() >= _look())
    cut = select(func.count() > 0).select_from(full.subquery("full")).scalar_subquery()
    back_to = func.min(seen.c.created_at).filter(seen.c.lane == "newest").label("back_to")
    looked = select(func.count().label("looked"), cut.label("cut"), back_to).select_from(seen).subquery("looked")
    shown = [c for c in seen.c if c.name not in ("lane", "last_error")]
    some = select(*shown, brief(seen.c.last_error).label("last_error")).where(*wanted(seen.c))
    found = (
        some.order_by(seen.c[by].desc(), seen.c.seq.desc()).limit(bindparam("size", type_=Integer)).subquery("found")
    )
    last_first = (found.c[by].desc(), found.c.seq.desc())
    return select(looked, found).select_from(looked.outerjoin(found, true())).order_by(*last_first)
