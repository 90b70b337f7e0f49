"""The statements that count messages by destination and state, without reading all of them.

They read each index from its beginning, up to a bound. Beyond the bound they estimate, from some pages of the table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    DateTime,
    Float,
    Integer,
    Select,
    SmallInteger,
    Table,
    Text,
    bindparam,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    table,
    true,
    union,
    union_all,
)
from sqlalchemy.sql import ColumnElement, CompoundSelect, FromClause

from outbox_tasks.database import hops, states
from outbox_tasks.database.pieces import PRIORITIES, as_priority, elapsed, json_rows, pending
from outbox_tasks.database.schema import PENDING, Tables, qualified
from outbox_tasks.database.states import is_dead
from outbox_tasks.model import DIRECT_EXPIRED, LEASE_EXPIRED

DUE, LATER, KEYED, DEAD = "due", "later", "keyed", "dead"
"""The parts in which messages are counted, each a range of an index: due and without a key; due later and without a
key; with a key; dead."""


def counts(t: Tables) -> CompoundSelect[Any]:
    """How many messages each destination has in each state: destination, part, lane, state, code (of the last error, if
    dead or retrying), counted; oldest: for how many seconds the oldest due message has been due (null for the part
    `keyed`: see `heads`); waited: for how many seconds the oldest of them that is not dead could have been sent; and
    dead_for: for how many the first has been dead.

    If a part, or a lane of it, reaches `bound`, it may have more. Parameters: names (array of destinations), bound.
    """
    m = t.messages
    names = func.unnest(bindparam("names", type_=ARRAY(Text))).table_valued("destination", name="name").render_derived()
    asked = select(names.c.destination).cte("asked")
    lane = union_all(*(select(as_priority(n, "lane")) for n in sorted(PRIORITIES.values()))).cte("lane")
    lanes = asked.join(lane, true())
    in_lane = (m.c.destination == asked.c.destination, m.c.key.is_(None), m.c.priority == lane.c.lane)
    bound: ColumnElement[int] = bindparam("bound", type_=Integer)

    def part(name: str, *where: ColumnElement[bool], order: tuple[ColumnElement[Any], ...]) -> Select[Any]:
        unkeyed = name in (DUE, LATER)
        since = _due_since(m) if unkeyed else cast(null(), DateTime(True))
        wanted = func.coalesce(m.c.deliver_at, m.c.created_at)
        waits = case((~is_dead(m) & (wanted <= func.now()), wanted)).label("waits")
        code = case((or_(is_dead(m), m.c.attempts > 0), m.c.last_error_code)).label("code")
        columns = (_state(m).label("state"), code, since.label("since"), waits, m.c.dead_at)
        some = select(*columns).where(*where).order_by(*order).limit(bound)
        sample = some.correlate(asked, lane).lateral(f"in_{name}")
        number = lane.c.lane if unkeyed else cast(null(), SmallInteger)
        return (
            select(asked.c.destination, literal(name).label("part"), number.label("lane"), sample.c.state)
            .add_columns(sample.c.code, func.count().label("counted"), _age(sample.c.since).label("oldest"))
            .add_columns(_age(sample.c.waits).label("waited"), _age(sample.c.dead_at).label("dead_for"))
            .select_from((lanes if unkeyed else asked).join(sample, true()))
            .group_by(asked.c.destination, sample.c.state, sample.c.code, *([lane.c.lane] if unkeyed else []))
        )

    return union_all(
        part(DUE, pending(m), *in_lane, m.c.locked_until <= func.now(), order=(m.c.locked_until,)),
        part(LATER, pending(m), *in_lane, m.c.locked_until > func.now(), order=(m.c.locked_until,)),
        part(KEYED, m.c.destination == asked.c.destination, m.c.key.is_not(None), order=(m.c.key, m.c.seq)),
        part(DEAD, m.c.destination == asked.c.destination, is_dead(m), order=(m.c.dead_at,)),
    )


def heads(t: Tables) -> Select[Any]:
    """The heads of the first `most` keys of each destination: how many (keys), for how many seconds the oldest has been
    due (oldest), and how many keys a dead head holds up (held_up). One probe of the index for each key.

    Parameters: blocking (JSON rows of destination, and blocks: whether a dead message holds up its key), most.
    """
    m = t.messages
    asked = json_rows("blocking", destination=Text, blocks=Boolean)
    columns = (m.c.key, m.c.status, _due_since(m).label("since"))
    keyed = (m.c.key.is_not(None), or_(asked.c.blocks, pending(m)))
    first = _next(select(*columns).where(m.c.destination == asked.c.destination, *keyed), m).correlate(asked)
    found = first.lateral("first")
    walk = select(asked, found, literal(1).label("hop")).select_from(asked.join(found, true()))
    walked = walk.cte("walk", recursive=True)
    after = (m.c.key > walked.c.key, or_(walked.c.blocks, pending(m)))
    following = _next(select(*columns).where(m.c.destination == walked.c.destination, *after), m).correlate(walked)
    behind = following.lateral("following")
    columns_of_step = (walked.c.destination, walked.c.blocks, behind, walked.c.hop + 1)
    step = select(*columns_of_step).select_from(walked.join(behind, true()))
    walked = walked.union_all(step.where(walked.c.hop < bindparam("most", type_=Integer)))
    waits = m.alias("waits")
    waiting = select(waits.c.id).where(waits.c.destination == walked.c.destination, waits.c.key == walked.c.key)
    held_up = func.count().filter(walked.c.status == "dead", exists(waiting.where(pending(waits))))
    return select(
        walked.c.destination, func.count().label("keys"), _age(walked.c.since).label("oldest"), held_up.label("held_up")
    ).group_by(walked.c.destination)


def present(t: Tables) -> CompoundSelect[Any]:
    """The destinations that have messages, configured or not. One probe of an index for each."""
    m = t.messages
    kinds = {"unkeyed": (pending(m), m.c.key.is_(None)), "keyed": (m.c.key.is_not(None),), "buried": (is_dead(m),)}
    return union(*(select(hops.destinations(m, kind, name).c.destination) for name, kind in kinds.items()))


def pages(t: Tables) -> Select[Any]:
    """The number of pages of outbox_messages."""
    size = func.pg_relation_size(
        func.to_regclass(literal(qualified(t.messages.schema, t.messages.name))), type_=BigInteger
    )
    return select(size // cast(func.current_setting("block_size"), BigInteger))


def sample(t: Tables) -> Select[Any]:
    """Counts the rows on some random pages: destination, part, state, counted. Parameter: percent (of the pages)."""
    m = t.messages.tablesample(func.system(bindparam("percent", type_=Float)))
    part = case(
        (is_dead(m), DEAD), (m.c.key.is_not(None), KEYED), (m.c.locked_until <= func.now(), DUE), else_=LATER
    ).label("part")
    found = select(m.c.destination, part, _state(m).label("state")).subquery("found")
    return select(found, func.count().label("counted")).group_by(*found.c)


def archived(t: Tables) -> Select[Any]:
    """The number of archived messages: counted up to `bound`, and as vacuum last estimated it (estimated)."""
    a = t.archive
    some = select(literal(1)).select_from(a).limit(bindparam("bound", type_=Integer)).subquery("some")
    inherits = table("pg_inherits", column("inhrelid"), column("inhparent"))
    classes = table("pg_class", column("oid"), column("reltuples", Float))
    tuples = (
        select(func.sum(func.greatest(classes.c.reltuples, 0)))
        .select_from(inherits.join(classes, classes.c.oid == inherits.c.inhrelid))
        .where(inherits.c.inhparent == func.to_regclass(literal(qualified(a.schema, a.name))))
    )
    counted = select(func.count()).select_from(some).scalar_subquery()
    return select(counted.label("counted"), cast(tuples.scalar_subquery(), BigInteger).label("estimated"))


def _state(m: FromClause) -> ColumnElement[str]:
    return case(*states.rules(m, func.now()), else_=PENDING)


def _due_since(m: Table) -> ColumnElement[Any]:
    """Since when a message has been due; null if it is not.

    A message whose lease ran out before its send began has been due all the time, also while it is leased again: so it
    shows that nobody sends.
    """
    code = m.c.last_error_code
    never_begun = (m.c.attempts == 0) & ((code == LEASE_EXPIRED) | (code == DIRECT_EXPIRED))
    return case(
        (is_dead(m), null()),
        (never_begun, func.coalesce(m.c.deliver_at, m.c.created_at)),
        (m.c.locked_until <= func.now(), m.c.locked_until),
    )


def _age(since: ColumnElement[Any]) -> ColumnElement[float]:
    """Seconds since the earliest of these times."""
    first = func.min(since)
    return case((first.is_not(None), elapsed(first, func.now())))


def _next(statement: Select[Any], m: Table) -> Select[Any]:
    return statement.order_by(m.c.key, m.c.seq).limit(1)
