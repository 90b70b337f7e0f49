"""Acts of people, done at once in the process of the test."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages.acts import Done
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter


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
