"""The statements with which processes report: the outcomes of messages, counted by the minute, and heartbeats.

A report that gets lost does no harm, so these commits don't wait for the disk.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Delete,
    Float,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    cast,
    delete,
    extract,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import ReturningInsert

from outbox_tasks.database.pieces import SECOND, commit_soon, epoch, json_rows, timeline
from outbox_tasks.database.schema import Tables

LATE = 30.0
"""A worker without a heartbeat for so many seconds counts as lost."""

SERVER = "server"
"""The name and kind of the row that remembers the database's timeline."""

SENT = ("sent", "handed")
"""Outcomes of a send that arrived."""

FAILED = ("retry", "release", "outage", "dead")
"""Outcomes of a failed send."""

REFUSED = ("retry", "release", "dead")
"""Outcomes of a send that the destination answered, and did not take."""


def tally(t: Tables) -> ReturningInsert[Any]:
    """Add to the counts. Returns the destinations.

    Parameter: counted (JSON rows of ago: how many seconds ago, destination, outcome, count).
    """
    said = json_rows("counted", ago=Float, destination=Text, outcome=Text, count=BigInteger)
    at = select(_minute(func.now() - said.c.ago * SECOND).label("minute"), said).where(commit_soon()).subquery("at")
    columns = (at.c.minute, at.c.destination, at.c.outcome)
    # Each row once, and every process in the same order, so that processes can't deadlock.
    summed = select(*columns, cast(func.sum(at.c["count"]), BigInteger)).group_by(*columns).order_by(*columns)
    add = insert(t.tallies).from_select(["minute", "destination", "outcome", "count"], summed)
    return add.on_conflict_do_update(
        index_elements=[t.tallies.c.minute, t.tallies.c.destination, t.tallies.c.outcome],
        set_={"count": t.tallies.c["count"] + add.excluded["count"]},
    ).returning(t.tallies.c.destination)


def tallied(t: Tables) -> Select[Any]:
    """What was counted in this minute and in the last `minutes`: destination, outcome, counted, and minutes (the exact
    time that the counts are of)."""
    c = t.tallies.c
    since = _minute(func.now()) - bindparam("minutes", type_=Integer) * 60 * SECOND
    over = cast(extract("epoch", func.now() - since) / 60, Float)
    counted = cast(func.sum(c["count"]), BigInteger)
    return (
        select(c.destination, c.outcome, counted.label("counted"), over.label("minutes"))
        .where(c.minute >= since)
        .group_by(c.destination, c.outcome)
    )


def course(t: Tables, *, of_one: bool) -> Select[Any]:
    """The sends of the last hours, in spans of time that each begin at a multiple of `width`: destination; ago (how
    many spans ago; 0: this one, which has not ended); sent and failed (how many).

    It reads the counts of that time by their index: of 100 destinations with four outcomes a minute, 72,000 rows for
    three hours. With `of_one` it reads only those of one destination. Parameters: width (seconds), spans (how many),
    and with `of_one` target (the destination).
    """
    c = t.tallies.c
    width = bindparam("width", type_=Float)
    this, own = (func.floor(epoch(time) / width) for time in (func.now(), c.minute))
    since = func.to_timestamp((this - bindparam("spans", type_=Integer) + literal_column("1")) * width)
    ago = cast(this - own, Integer).label("ago")
    found = (
        select(c.destination, ago, _summed(t, SENT).label("sent"), _summed(t, FAILED).label("failed"))
        .where(c.minute >= since, c.minute <= func.now())
        .group_by(c.destination, ago)
    )
    return found.where(c.destination == bindparam("target", type_=Text)) if of_one else found


def _summed(t: Tables, outcomes: tuple[str, ...]) -> ColumnElement[int]:
    c = t.tallies.c
    wanted = c.outcome.in_([literal_column(f"'{outcome}'", Text) for outcome in outcomes])
    return cast(func.sum(case((wanted, c["count"]), else_=literal_column("0"))), BigInteger)


def beat(t: Tables) -> ReturningInsert[Any]:
    """Write heartbeats: who is alive, or what has just run. Returns the names that were written. Parameter: seen (JSON
    rows of name, kind, ago: how many seconds ago, facts).

    A worker may find that another one wrote a fresh heartbeat under its name. It counts that as `met`: once after a
    restart, but again and again if two workers have the same name.
    """
    h = t.heartbeats
    said = json_rows("seen", name=Text, kind=Text, ago=Float, facts=JSONB)
    at = func.clock_timestamp() - said.c.ago * SECOND
    rows = select(said.c.name, said.c.kind, at, said.c.facts).where(commit_soon()).order_by(said.c.name)
    add = insert(h).from_select(["name", "kind", "seen_at", "facts"], rows)
    new = add.excluded
    other = h.c.facts["started"].astext != new.facts["started"].astext
    times = func.coalesce(cast(h.c.facts["met"].astext, Integer), 0) + 1
    fresh = h.c.seen_at > func.now() - literal(LATE) * SECOND
    none: ColumnElement[Any] = literal_column("'{}'::jsonb")
    met = case((other & fresh, func.jsonb_build_object("met", times)), else_=none)
    return add.on_conflict_do_update(
        index_elements=[h.c.name],
        set_={
            "kind": new.kind,
            "seen_at": new.seen_at,
            "facts": new.facts.op("||")(met),
        },
        where=h.c.seen_at <= new.seen_at,  # several processes report what has run: the newest report counts
    ).returning(h.c.name)


def on_timeline(t: Tables) -> ReturningInsert[Any]:
    """Remember the timeline. Returns a row if it is not the one that was known: `before`; null: none was known."""
    h = t.heartbeats
    name = literal_column(f"'{SERVER}'", Text)
    now = func.jsonb_build_object("timeline", timeline())
    add = insert(h).from_select(["name", "kind", "seen_at", "facts"], select(name, name, func.clock_timestamp(), now))
    known, new = h.c.facts["timeline"].astext, add.excluded
    changed = func.jsonb_build_object("before", known, "changed", func.clock_timestamp())
    return add.on_conflict_do_update(
        index_elements=[h.c.name],
        set_={"seen_at": new.seen_at, "facts": new.facts.op("||")(changed)},
        where=known != new.facts["timeline"].astext,
    ).returning(h.c.facts["before"].astext.label("before"))


def heartbeats(t: Tables) -> Select[Any]:
    """All heartbeats: name, kind, seen_at, age (seconds), facts."""
    h = t.heartbeats
    age = cast(extract("epoch", func.clock_timestamp() - h.c.seen_at), Float)
    return select(h.c.name, h.c.kind, h.c.seen_at, age.label("age"), h.c.facts).order_by(h.c.name)


def stopped(t: Tables) -> Delete:
    """Remove the heartbeat of a worker that stops. Parameters: name, started: a new worker may have the name
    already."""
    h = t.heartbeats
    mine = h.c.facts["started"].astext == bindparam("started", type_=Text)
    return delete(h).where(h.c.name == bindparam("name", type_=Text), mine)


def _minute(at: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.date_trunc(literal_column("'minute'"), at)
