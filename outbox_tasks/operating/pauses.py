"""Pause and resume a destination. The audit records each act, with who and why."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, bindparam, case, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql import Select
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert

from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import Tables
from outbox_tasks.operating.audit import recorded


def pause(database: Database, destination: str, who: str, why: str | None) -> None:
    """Send nothing to a destination until `resume`."""
    database.rows(paused(database.tables), {"target": destination, "person": who, "reason": why})


def resume(database: Database, destination: str, who: str, why: str | None = None) -> bool:
    """End a pause, and close the breaker. Returns whether the destination was paused or had failed."""
    return bool(database.rows(resumed(database.tables), {"target": destination, "person": who, "reason": why}))


def paused(t: Tables) -> Select[Any]:
    """Pause a destination. A second pause without a reason changes nothing: who, when and why stay. Parameters: target
    (the destination), person, reason."""
    add = insert(t.destinations).values(
        name=bindparam("target", type_=Text),
        paused_at=func.clock_timestamp(),
        paused_by=bindparam("person", type_=Text),
        paused_why=bindparam("reason", type_=Text),
    )
    d, new = t.destinations.c, add.excluded
    again = d.paused_at.is_not(None) & new.paused_why.is_(None)
    names = ("paused_at", "paused_by", "paused_why")
    changed = {name: case((again, d[name]), else_=new[name]) for name in names}
    paused = add.on_conflict_do_update(index_elements=[t.destinations.c.name], set_=changed)
    return _audited(t, "pause", paused.returning(t.destinations.c.name))


def resumed(t: Tables) -> Select[Any]:
    """End a pause, and close the breaker; a row if there was something to end. Parameters: as for `paused`."""
    d = t.destinations
    ended = delete(d).where(d.c.name == bindparam("target", type_=Text)).returning(d.c.name)
    return _audited(t, "resume", ended)


def _audited(t: Tables, action: str, act: ReturningInsert[Any] | ReturningDelete[Any]) -> Select[Any]:
    changed = act.cte("changed")
    return select(changed.c.name).add_cte(recorded(t, action, changed.c.name, changed))
