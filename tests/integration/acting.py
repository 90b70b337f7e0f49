"""Acts of people, done at once in the process of the test."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages.acts import Done
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter
from tests.conftest import Rows, seconds_from_now

DEAD = Filter(states=("dead",))


def bury(rows: Rows, count: int = 1, **columns: Any) -> list[str]:
    """Dead letters, of a minute ago."""
    dead = {"status": "dead", "dead_at": seconds_from_now(-60), "attempts": 3, "last_error_code": "http_400"}
    return rows.insert(count, **{**dead, "last_error": "refused: no such order 42", **columns})


def acts(rows: Rows) -> list[Any]:
    """The audit."""
    return rows._read(text(f"SELECT * FROM {rows.tables.audit} ORDER BY seq"))


def acted(
    database: Database, action: Any, ids: Iterable[UUID | str] = (), *, who: str = "ann", why: str | None = None,
    states: Iterable[str] = ("dead",), destination: str | None = None, **more: Any,
) -> Done:  # fmt: skip
    """Do it to these messages, if they have one of these states; without ids to all that have one."""
    named = [UUID(str(id)) for id in ids]
    with closing(Runner(database)) as runner:
        how = {"who": who, "why": why, "token": uuid4(), "wake": False, **more}
        return runner.follow(
            runner.begin(action, Filter(states=tuple(states), destination=destination), named, **how), who
        )
