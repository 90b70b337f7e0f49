"""The statements of the alerts. Each alert has a row, so that the whole cluster sends it once.

An alert begins when something happens, is open while that lasts, and is over when nothing of it is left. It is sent
again after a while if more has happened meanwhile. A process that posts an alert leases it by `post_at`.
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
    Interval,
    Text,
    any_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql import ColumnElement, Delete, Select, Update
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from outbox_tasks.database.pieces import SECOND, brief, json_rows, seconds
from outbox_tasks.database.schema import Tables
from outbox_tasks.database.states import is_dead

POSTS = 100
"""Tries to post an alert, at most five minutes apart."""

MINUTE = literal_column("interval '1 minute'", Interval)

FIRST_LOOK = literal_column("interval '1 hour'", Interval)
"""How far back the first look for failed runs goes."""


def record_alerts(t: Tables) -> ReturningInsert[Any]:
    """Count what happened, by the names of the alerts. `now` is true for those to send now: they begin, or were sent
    long ago.

    Parameters: happened (JSON rows of alert: its name, kind, destination, count and facts, sorted by name so that two
    processes never wait for each other); again (seconds after which to send an alert again), posting (whether to post
    what is sent).
    """
    a = t.alerts
    row = json_rows("happened", alert=Text, kind=Text, destination=Text, count=BigInteger, facts=JSONB)
    values = {
        "name": row.c.alert, **{name: row.c[name] for name in ("kind", "destination", "count", "facts")},
        "first_at": func.now(), "last_at": func.now(), "told_at": func.now(), "told": row.c.count,
        "post_at": case((bindparam("posting", type_=Boolean), func.now())),
    }  # fmt: skip
    add = insert(a).from_select(list(values), select(*values.values()).select_from(row))
    new = add.excluded
    begins = a.c.over_at.is_not(None)
    due = or_(begins, a.c.told_at <= func.now() - seconds("again"))
    return add.on_conflict_do_update(
        index_elements=[a.c.name],
        set_={
            "first_at": case((begins, new.first_at), else_=a.c.first_at),
            "last_at": new.last_at,
            "told_at": case((due, new.told_at), else_=a.c.told_at),
            "over_at": null(),
            "count": case((begins, new.count), else_=a.c.count + new.count),
            "told": case((due, a.c.untold + new.count), else_=a.c.told),
            "untold": case((due, 0), else_=a.c.untold + new.count),
            "post_at": case((due, new.post_at), else_=a.c.post_at),
            "posts": case((due, 0), else_=a.c.posts),
            "facts": new.facts,
        },
    ).returning(*_shown(t), (a.c.told_at == a.c.last_at).label("now"))


def end_alerts(t: Tables) -> ReturningUpdate[Any]:
    """End the alerts of which nothing is left and nothing new came for a while. `now` is true for those whose end is
    sent: not for dead letters, which end when a person acts. Parameters: quiet (seconds), posting.
    """
    a, d, m = t.alerts, t.destinations, t.messages
    circuit_open = exists(select(d.c.name).where(d.c.name == a.c.destination, d.c.opened_at.is_not(None)))
    dead = exists(
        # A message died a moment before its alert began.
        select(m.c.id).where(
            m.c.destination == a.c.destination,
            m.c.status == literal_column("'dead'"),
            m.c.dead_at > a.c.first_at - MINUTE,
            # Messages that died for another reason have an alert of their own.
            case(
                (a.c.kind == "dead_letter", m.c.last_error_code.is_not_distinct_from(a.c.facts["code"].astext)),
                else_=m.c.key.is_not(None),
            ),
        )
    )
    # Each check counts what is stale. So if nothing new came, it is over.
    lasts = case(
        (a.c.kind == "breaker", circuit_open),
        (or_(a.c.kind == "dead_letter", a.c.kind == "key_blocked"), dead),
        else_=false(),
    )
    end_is_sent = or_(*(a.c.kind == kind for kind in ("breaker", "stale", "late")))
    return (
        update(a)
        .where(a.c.over_at.is_(None), a.c.last_at < func.now() - seconds("quiet"), ~lasts)
        .values(
            over_at=func.now(),
            told=case((end_is_sent, a.c.untold), else_=a.c.told),
            untold=case((end_is_sent, 0), else_=a.c.untold),
            post_at=case((end_is_sent & bindparam("posting", type_=Boolean), func.now()), else_=a.c.post_at),
            posts=case((end_is_sent, 0), else_=a.c.posts),
        )
        .returning(*_shown(t), end_is_sent.label("now"))
    )


def take_posts(t: Tables) -> ReturningUpdate[Any]:
    """Lease the alerts to post. Parameter: hold (seconds)."""
    a = t.alerts
    waiting = (
        select(a.c.name).where(a.c.post_at <= func.now()).order_by(a.c.post_at).limit(20)
        .with_for_update(skip_locked=True)
    )  # fmt: skip
    return (
        update(a)
        .where(a.c.name == any_(func.array(waiting.scalar_subquery())))
        .values(post_at=func.now() + seconds("hold"), posts=a.c.posts + 1)
        .returning(*_shown(t), a.c.post_at, a.c.posts)
    )


def posted(t: Tables) -> ReturningUpdate[Any]:
    """Note that alerts were posted, unless they are to be posted again. Parameters: names (array), lease (their
    `post_at`)."""
    return _taken(t).values(post_at=null()).returning(t.alerts.c.name)


def put_off(t: Tables) -> ReturningUpdate[Any]:
    """Post alerts again after a wait that doubles each time, up to five minutes; after `POSTS` tries never.

    Parameters: names (array), lease (their `post_at`), wait (seconds, the first time).
    """
    a = t.alerts
    longer = func.least(literal(300.0), bindparam("wait", type_=Float) * func.power(2, func.least(a.c.posts - 1, 20)))
    later = case((a.c.posts < POSTS, func.now() + longer * SECOND))
    return _taken(t).values(post_at=later).returning(a.c.name, a.c.post_at)


def _taken(t: Tables) -> Update:
    a = t.alerts
    names = bindparam("names", type_=ARRAY(Text))
    return update(a).where(a.c.name == any_(names), a.c.post_at == bindparam("lease", type_=DateTime(True)))


def turn_to_look(t: Tables) -> ReturningInsert[Any]:
    """A row if no process of the cluster has checked for `pace` seconds: then it is our turn."""
    h = t.heartbeats
    add = insert(h).values(name=literal("alerts"), kind=literal("look"))
    return add.on_conflict_do_update(
        index_elements=[h.c.name],
        set_={"seen_at": func.clock_timestamp()},
        where=h.c.seen_at < func.clock_timestamp() - seconds("pace"),
    ).returning(h.c.name)


def failed_runs(t: Tables) -> Select[Any]:
    """The supervised tasks that have ended dead since the last look: an application's worker ended them, and sends no
    alert. Each row has `until`, up to which this looks; there is one without a message if none has died.

    It looks up to a moment ago, so that the deaths up to then are committed. Parameters: names (array of
    destinations), lag (seconds), size (at most so many, the first ones).
    """
    m, h = t.messages, t.heartbeats
    upto = select(cast(h.c.facts["upto"].astext, DateTime(True))).where(h.c.name == "alerts").scalar_subquery()
    names = func.unnest(bindparam("names", type_=ARRAY(Text))).table_valued("name", name="named").render_derived()
    span = select(
        func.coalesce(upto, func.now() - FIRST_LOOK).label("since"), (func.now() - seconds("lag")).label("until")
    ).subquery("span")
    columns = (cast(m.c.id, Text).label("id"), m.c.destination, m.c.key, m.c.event_type, m.c.attempts, m.c.dead_at,
               m.c.last_error_code.label("code"), brief(m.c.last_error).label("error"))  # fmt: skip
    # Only the end of a run notes a traceback with the death.
    by_a_run = func.coalesce(m.c.history[-1].has_key("traceback"), false())
    ours = (is_dead(m), m.c.destination == names.c.name, m.c.dead_at > span.c.since, m.c.dead_at <= span.c.until)
    size = bindparam("size", type_=Integer)
    each = select(*columns).where(*ours, by_a_run).order_by(m.c.dead_at).limit(size).correlate(names, span)
    of_one = each.lateral("each")
    all_of_them = select(of_one).select_from(names.join(of_one, true()))
    some = all_of_them.correlate(span).order_by(of_one.c.dead_at).limit(size).lateral("some")
    return select(span.c.until, some).select_from(span.outerjoin(some, true())).order_by(some.c.dead_at)


def looked(t: Tables) -> Update:
    """Note up to when `failed_runs` has been seen to. Parameter: until."""
    h = t.heartbeats
    return (
        update(h)
        .where(h.c.name == "alerts")
        .values(facts=func.jsonb_build_object("upto", bindparam("until", type_=DateTime(True))))
    )


def known_alerts(t: Tables) -> Select[Any]:
    """The alerts: open ones first, then the latest. Parameter: size."""
    a = t.alerts
    return (
        select(*_shown(t), a.c.untold, a.c.post_at)
        .order_by(a.c.over_at.is_not(None), a.c.last_at.desc())
        .limit(bindparam("size", type_=Integer))
    )


def forget_alerts(t: Tables) -> Delete:
    """Delete the alerts that have long been over. Parameter: keep (seconds)."""
    return delete(t.alerts).where(t.alerts.c.over_at < func.now() - seconds("keep"))


def _shown(t: Tables) -> tuple[ColumnElement[Any], ...]:
    a = t.alerts
    return (
        a.c.name, a.c.kind, a.c.destination, a.c.first_at, a.c.last_at, a.c.told_at, a.c.over_at, a.c.count, a.c.told,
        a.c.facts,
    )  # fmt: skip
