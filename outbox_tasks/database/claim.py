"""The statements that lease messages without a key, the longest due first. `claim_keys` leases those with keys.

A claim notes on a row why its last lease ended, so that a repeated delivery can be traced. A message that has no
attempts left, or is too old or too large, becomes a dead letter as it is claimed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    DateTime,
    Float,
    Integer,
    Table,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    table,
    true,
    union_all,
    update,
)
from sqlalchemy.sql import ColumnElement, FromClause, Subquery, Update

from outbox_tasks.database import hops
from outbox_tasks.database.pieces import (
    SECOND,
    as_priority,
    fewer,
    json_rows,
    never_settled,
    noted,
    once,
    pending,
    probe,
    seconds,
    size,
)
from outbox_tasks.database.schema import DEAD, PENDING, Tables
from outbox_tasks.model import (
    ALONE_AFTER,
    DIRECT_EXPIRED,
    LEASE_EXPIRED,
    NOT_STARTED,
    TIMELINE_CHANGED,
    TOO_LARGE,
    UNSETTLED,
    WORKER_LOST,
)

SHARE: dict[str, Any] = {
    "destination": Text, "size": Integer, "ceiling": Integer, "oldest": Float, "largest": Integer, "longest": Integer,
    "blocks": Boolean, "past": Text, "beyond": BigInteger,
}  # fmt: skip
"""What a claim wants of a destination: `size` messages at most. A message with `ceiling` attempts, or older than
`oldest` seconds (null: of any age), or of more than `largest` bytes, becomes a dead letter. For messages with
keys: the `longest` run of one key, whether a dead message `blocks` its key, the key to start after (`past`; null: at
the first), and the number that rows must be `beyond` (for a test, which leaves older rows alone)."""

BUNDLE_BYTES = 4 * 1024 * 1024
"""The payloads of one bundle have at most so many bytes, unless it is a single message: one statement fetches them and
one archives them, and both must end in time."""

UNHEARD = "the broker had it, and no worker began it in time: it was lost there, or it waits in a long queue"
"""The error text of a task that was handed over and did not begin to run."""

LATE = "its writer leased it, and no worker began it in time: the writer ended first, or its task was lost or late"
"""The error text of a message that went past the claim and did not arrive."""

WEIGHTS = {1: 6, 0: 3, -1: 1}
"""How a destination's share is split among high, normal and low priority, if each has enough due."""


def claim(t: Tables) -> Update:
    """Lease due messages without a key: of each destination at most its share, of each priority the longest due first.

    Parameters: share (JSON rows as in `SHARE`); token (the new lease), holder, hold (seconds).
    """
    m = t.messages
    share = json_rows("share", **SHARE)
    weighted = (select(as_priority(n), literal_column(str(w), Integer).label("weight")) for n, w in WEIGHTS.items())
    lane = union_all(*weighted).subquery("lane")
    due = (
        select(*state(m), m.c.locked_until)
        .where(*is_due(m), m.c.key.is_(None), m.c.destination == share.c.destination, m.c.priority == lane.c.priority)
        .order_by(m.c.locked_until)
        .limit(share.c.size)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )
    in_lane = func.row_number().over(partition_by=(share.c.destination, lane.c.priority), order_by=due.c.locked_until)
    found = (
        select(due, share.c.destination, share.c.size, share.c.ceiling, share.c.oldest, share.c.largest)
        .add_columns((in_lane // lane.c.weight).label("turn"))
        .select_from(share.join(lane, true()).join(due, true()))
        .subquery("found")
    )
    place = func.row_number().over(partition_by=found.c.destination, order_by=(found.c.turn, found.c.locked_until))
    placed = select(found, place.label("place")).subquery("placed")
    picked = select(placed).where(placed.c.place <= placed.c.size).cte("picked")
    return leased(m, picked)


def is_due(m: FromClause) -> tuple[ColumnElement[bool], ...]:
    """Whether a row may be claimed: for the first time, after a wait, or because its lease ran out."""
    return pending(m), m.c.locked_until <= func.now()


def state(m: Table) -> tuple[ColumnElement[Any], ...]:
    """The columns that `leased` needs as they were before it changes the row."""
    since = func.coalesce(m.c.deliver_at, m.c.created_at).label("since")
    before = (m.c.attempts, m.c.lease, m.c.begun, m.c.handed_at, m.c.locked_by, m.c.last_error_code, m.c.latest)
    return m.c.id, at(m).label("at"), *before, since, size(m).label("bytes")


def at(m: Table) -> ColumnElement[Any]:
    """The place of a row's version in the table. A row that this transaction has locked stays there."""
    return literal_column(f"{m.name}.ctid")


def is_alone(m: FromClause) -> ColumnElement[bool]:
    """Whether its last send may have killed the worker or failed its whole bundle. Then it travels alone."""
    return or_(is_unsettled(m), func.coalesce(or_(*(m.c.last_error_code == code for code in ALONE_AFTER)), false()))


def is_spent(m: FromClause, share: FromClause) -> ColumnElement[bool]:
    """Whether it has no attempts left, or is too old or too large. A task that did not begin to run gets its attempt
    back."""
    return or_(and_(m.c.attempts >= share.c.ceiling, ~is_not_started(m)), _too_old(m, share), _too_large(m, share))


def is_unsettled(m: FromClause) -> ColumnElement[bool]:
    """Whether a send began and was never settled."""
    return and_(m.c.begun, m.c.handed_at.is_(None))


def is_lost(m: FromClause) -> ColumnElement[bool]:
    """Whether a task began to run, and its worker no longer says so."""
    return and_(m.c.begun, m.c.handed_at.is_not(None))


def is_not_started(m: FromClause) -> ColumnElement[bool]:
    """Whether a task was handed over, and did not begin to run in time."""
    return and_(m.c.begun == false(), m.c.handed_at.is_not(None))


def _too_old(m: FromClause, share: FromClause) -> ColumnElement[bool]:
    return func.coalesce(m.c.since < func.now() - share.c.oldest * SECOND, false())


def _too_large(m: FromClause, share: FromClause) -> ColumnElement[bool]:
    """Whoever writes in SQL may write any size, and a begin that fetches too much never ends in time."""
    return m.c.bytes > share.c.largest


def leased(m: Table, picked: FromClause, superseded: ColumnElement[bool] | None = None) -> Update:
    """Lease the rows of `picked`, which has the columns of `state`, ceiling, oldest and largest. Returns a
    `Claimed` of each."""
    spent, not_started = is_spent(picked, picked), is_not_started(picked)
    return (
        update(m)
        .where(at(m) == picked.c.at)
        .values(
            lease=case((spent, null()), else_=bindparam("token", type_=Uuid)),
            locked_by=bindparam("holder", type_=Text),
            locked_until=once(func.clock_timestamp()) + seconds("hold"),
            begun=false(),
            handed_at=null(),
            attempts=case((not_started, fewer(m.c.attempts)), else_=m.c.attempts),
            outages=case((not_started, fewer(m.c.outages)), else_=m.c.outages),
            status=case((spent, literal(DEAD)), else_=literal(PENDING)),
            dead_at=case((spent, func.clock_timestamp())),
            **_causes(m, picked),
        )
        .returning(
            *_claimed(m, is_alone(picked)),
            (false() if superseded is None else superseded).label("superseded"),
            _ended(picked).label("cause"),
            size(m).label("size"),
        )
    )


def _ended(picked: FromClause) -> ColumnElement[str]:
    """Why the last lease of a row ended; null: it had none."""
    return case(
        (is_unsettled(picked), UNSETTLED),
        (is_lost(picked), WORKER_LOST),
        (is_not_started(picked), NOT_STARTED),
        (picked.c.lease.is_not(None), _ran_out(picked)),
    )


def _ran_out(picked: FromClause) -> ColumnElement[str]:
    """Whose lease it was that ran out before the send began. A writer's names no holder."""
    return case((picked.c.locked_by.is_(None), literal(DIRECT_EXPIRED)), else_=literal(LEASE_EXPIRED))


def _causes(m: Table, picked: FromClause) -> dict[str, ColumnElement[Any]]:
    """The columns that say why the last lease of a row ended, or why it is a dead letter now."""
    spent, expired = is_spent(picked, picked), picked.c.lease.is_not(None)
    too_old, too_large = _too_old(picked, picked), _too_large(picked, picked)
    unsettled, lost, not_started = is_unsettled(picked), is_lost(picked), is_not_started(picked)
    begun_by = never_settled(picked.c.attempts, picked.c.locked_by)
    ran_on = func.format(
        "attempt %s ran on %s, and its worker was lost: it died, or could not say for too long that it runs",
        picked.c.attempts,
        picked.c.locked_by,
    )
    aged = func.format(
        "not delivered within %s seconds; the last error was: %s",
        picked.c.oldest,
        func.coalesce(m.c.last_error, "none"),
    )
    sized = func.format(
        "its payload has %s bytes, and the destination takes %s: see max_bytes", picked.c.bytes, picked.c.largest
    )
    claimed = func.format("claimed by %s, and the lease ran out before it was begun", picked.c.locked_by)
    waited = case((picked.c.locked_by.is_(None), literal(LATE)), else_=claimed)
    known = func.coalesce(m.c.last_error_code, literal("attempts_exhausted"))
    code: list[tuple[ColumnElement[bool], Any]] = [
        (unsettled, literal(UNSETTLED)),
        (lost, literal(WORKER_LOST)),
        (too_old, literal("too_old")),
        (too_large, literal(TOO_LARGE)),
        (spent, known),
    ]
    fate = case((spent, literal(DEAD)), else_=literal("claimed again"))
    unused = case((not_started, literal(NOT_STARTED)), else_=_ran_out(picked))
    said = case(*code, (expired, unused))
    entry = noted(m, fate, attempt=picked.c.attempts, code=said, by=picked.c.locked_by)
    return {
        # An earlier error stays: it may be the cause of a repetition, and these two are not.
        "last_error_code": case(
            *code, (expired, func.coalesce(m.c.last_error_code, unused)), else_=m.c.last_error_code
        ),
        "last_error": case(
            (unsettled, begun_by),
            (lost, ran_on),
            (too_old, aged),
            (too_large, sized),
            (not_started, func.coalesce(m.c.last_error, literal(UNHEARD))),
            (expired, func.coalesce(m.c.last_error, waited)),
            else_=m.c.last_error,
        ),
        "history": case((or_(unsettled, spent, expired), entry), else_=m.c.history),
    }


@cache
def recall(t: Tables) -> Update:
    """End leases that nobody will use: those of messages that are not begun, and those that the dead holder `gone` has
    begun. A task that was handed over is in another broker, and keeps its time.

    If a task for such a message comes after all, its begin finds no lease. A retry is due when its wait is over. Rows
    that are locked are left alone. Parameters: gone (the holder; null: all), crashed (only leases from before the
    server's last crash, which resets its statistics), hold (seconds that a lease is granted beyond a wait).
    """
    m = t.messages
    gone = bindparam("gone", type_=Text)
    crash = select(column("stats_reset", DateTime(True))).select_from(table("pg_stat_bgwriter")).scalar_subquery()
    before = or_(~bindparam("crashed", type_=Boolean), m.c.locked_until - seconds("hold") < crash)
    unused = and_(m.c.begun == false(), m.c.handed_at.is_(None), or_(gone.is_(None), m.c.locked_by == gone), before)
    unended = and_(m.c.begun, m.c.locked_by == gone)
    found = (
        select(m.c.id)
        .where(pending(m), m.c.lease.is_not(None), m.c.locked_until > func.now(), or_(unused, unended))
        .with_for_update(skip_locked=True)
        .cte("found")
    )
    now = once(func.clock_timestamp())
    until = case((m.c.begun, now), else_=func.greatest(now, m.c.locked_until - seconds("hold")))
    # Never later than it was: another recall may have ended it a moment ago.
    return update(m).where(probe(m.c.id, found.c.id)).values(locked_until=func.least(m.c.locked_until, until))


@cache
def note_timeline(t: Tables) -> Update:
    """Note on messages that they may have been delivered: the server that took over, or was restored, knows neither
    the claim nor the send. Only those that are due can have been, the first ones before others. Parameter: most."""
    m = t.messages
    due = or_(m.c.locked_until <= func.now(), m.c.lease.is_not(None))
    found = (
        select(m.c.id)
        .where(pending(m), due, m.c.begun == false(), m.c.handed_at.is_(None), m.c.last_error_code.is_(None))
        .order_by(m.c.locked_until)
        .limit(bindparam("most", type_=Integer))
        .with_for_update(skip_locked=True)
        .cte("found")
    )
    why = "the database is on another timeline (a failover, or a restore); the message may have been delivered before"
    return (
        update(m)
        .where(probe(m.c.id, found.c.id))
        .values(
            last_error_code=TIMELINE_CHANGED,
            last_error=why,
            history=noted(m, "noted", code=literal(TIMELINE_CHANGED)),
        )
    )


@cache
def bury_unroutable(t: Tables) -> Update:
    """Make dead letters of messages that have been due for `grace` seconds for destinations that are not `known`
    (array). Writers may know of a destination before the relay does."""
    m = t.messages
    # In the order of the two indexes, so that no more rows are read than are taken.
    unkeyed = _unroutable(m, "unkeyed", (pending(m), m.c.key.is_(None)), (m.c.priority, m.c.locked_until))
    keyed = _unroutable(m, "keyed", (m.c.key.is_not(None),), (m.c.key, m.c.seq))
    picked = union_all(select(unkeyed), select(keyed)).cte("picked")
    named = func.quote_literal(func.left(m.c.destination, 100))
    return (
        update(m)
        .where(probe(m.c.id, picked.c.id))
        .values(
            status=DEAD,
            dead_at=func.clock_timestamp(),
            lease=null(),
            begun=false(),
            handed_at=null(),
            last_error_code="unknown_destination",
            last_error=func.format("no destination %s is configured", named),
            history=noted(m, "dead", code="unknown_destination"),
        )
        .returning(*_claimed(m, false()))
    )


def _claimed(m: Table, alone: ColumnElement[bool]) -> tuple[ColumnElement[Any], ...]:
    """The columns of a `Claimed` that need no lease."""
    return (
        m.c.seq,
        cast(m.c.id, Text).label("id"),
        m.c.destination,
        m.c.event_type,
        m.c.attempts,
        m.c.status,
        alone.label("alone"),
        m.c.key,
        m.c.priority,
        m.c.last_error_code.label("code"),
        m.c.last_error.label("error"),
    )


def _unroutable(
    m: Table, name: str, kind: tuple[ColumnElement[bool], ...], order: tuple[ColumnElement[Any], ...]
) -> Subquery:
    """Due messages for unknown destinations, from one of the indexes."""
    found = hops.destinations(m, kind, f"{name}_found")
    unknown = (
        select(found.c.destination)
        .where(found.c.destination != func.all_(bindparam("known", type_=ARRAY(Text))))
        .limit(100)
        .subquery("unknown")
    )
    due = (
        select(m.c.id)
        .where(
            *kind,
            pending(m),
            m.c.locked_until <= func.now() - seconds("grace"),
            m.c.destination == unknown.c.destination,
        )
        .order_by(*order)
        .limit(100)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )
    return select(due.c.id).select_from(unknown.join(due, true())).subquery(name)
