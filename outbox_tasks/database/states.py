"""In which state a message is. The view outbox_all says the same in SQL, and a test compares both."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, and_, case, func, literal_column, or_
from sqlalchemy.sql import ColumnElement, FromClause

from outbox_tasks.database.schema import PENDING


def is_dead(m: FromClause) -> ColumnElement[bool]:
    """Written out, not a parameter: only then can every plan use the partial index."""
    return m.c.status == literal_column("'dead'")


def rules(m: FromClause, now: ColumnElement[Any]) -> tuple[tuple[ColumnElement[bool], str], ...]:
    """The states of a row of outbox_messages. The first whose condition is true is its state; if none is, it is
    pending."""
    waits = m.c.locked_until > now
    return (
        (is_dead(m), "dead"),
        (and_(m.c.handed_at.is_not(None), waits, m.c.begun), "running"),
        (and_(m.c.handed_at.is_not(None), waits), "handed over"),
        (and_(m.c.lease.is_not(None), waits, or_(m.c.begun, m.c.attempts == 0)), "leased"),
        (m.c.attempts > 0, "retrying"),
        (waits, "scheduled"),
    )


def state_of(m: FromClause, now: ColumnElement[Any] | None = None) -> ColumnElement[str]:
    """The state of a row, as text in the statement. `now`: that of the transaction, if not given."""
    named = [(when, literal_column(f"'{name}'", Text)) for when, name in rules(m, func.now() if now is None else now)]
    return case(*named, else_=literal_column(f"'{PENDING}'", Text))
