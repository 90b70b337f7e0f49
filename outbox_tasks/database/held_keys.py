"""The keys that a dead message holds up: see `claim_keys`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, Integer, Text, bindparam, cast, exists, func, literal_column, select
from sqlalchemy.sql import ColumnElement, FromClause, Select

from outbox_tasks.database.pieces import pending
from outbox_tasks.database.schema import Tables

COUNTED = 10_000
"""Messages that wait for a key, and keys, are counted up to here."""


def blocked_keys(t: Tables) -> Select[Any]:
    """The keys that a dead message holds up, the longest first: which message, since when and why, and how many wait
    behind it, counted up to `COUNTED`. Parameters: blocking (the destinations where dead messages hold up their keys),
    size."""
    m = t.messages
    behind = waiting_behind(t, m).limit(COUNTED).correlate(m).subquery("behind")
    count = select(func.count()).select_from(behind).scalar_subquery()
    found = select(m.c.destination, m.c.key, cast(m.c.id, Text).label("id"), m.c.event_type).add_columns(
        m.c.dead_at.label("since"), m.c.last_error_code, m.c.last_error, count.label("waiting")
    )
    return found.where(*_blocking(t)).order_by(m.c.dead_at).limit(bindparam("size", type_=Integer))


def count_blocked_keys(t: Tables) -> Select[Any]:
    """How many keys a dead message holds up, counted up to `size`. Parameters: as for `blocked_keys`."""
    found = select(t.messages.c.id).where(*_blocking(t)).limit(bindparam("size", type_=Integer)).subquery("found")
    return select(func.count()).select_from(found)


def waiting_behind(t: Tables, head: FromClause) -> Select[Any]:
    """The pending messages behind `head` with the same key."""
    behind = t.messages.alias("waiting")
    same = (behind.c.destination == head.c.destination, behind.c.key == head.c.key)
    return select(behind.c.id).where(*same, behind.c.seq > head.c.seq, pending(behind))


def _blocking(t: Tables) -> Sequence[ColumnElement[bool]]:
    """Whether a row is a dead head, and others wait behind it."""
    m, earlier = t.messages, t.messages.alias("earlier")
    same = (earlier.c.destination == m.c.destination, earlier.c.key == m.c.key, earlier.c.seq < m.c.seq)
    return (
        m.c.status == literal_column("'dead'"),
        m.c.key.is_not(None),
        m.c.destination == func.any_(bindparam("blocking", type_=ARRAY(Text))),
        ~exists(select(earlier.c.id).where(*same)),
        exists(waiting_behind(t, m)),
    )
