"""Which stored tasks would fail with this code: a task or destination is gone, or the arguments no longer fit."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from celery import Celery
from pydantic_core import from_json

from outbox_tasks.database.connection import Database
from outbox_tasks.settings import Settings
from outbox_tasks.text import one_line

MESSAGES_A_READ = 5000
PAYLOAD_BYTES_READ = 65_536
"""Of a task with a larger payload, the arguments are not checked."""


class Failing(NamedTuple):
    """Stored tasks that would fail for one reason. `number`: of tasks; `first`: the id of one."""

    task: str
    destination: str
    reason: str
    number: int
    first: UUID

    def __str__(self) -> str:
        what = f"{self.number:,} {self.task} to {self.destination}: {self.reason}; the first: {self.first}"
        return one_line(what)


def failing(database: Database, settings: Settings, apps: Sequence[Celery]) -> Sequence[Failing]:
    """The stored tasks that would fail, the most frequent first. A task is one of an app's if any of them has it."""
    code = _Code(settings, apps)
    found: dict[tuple[str, str, str], tuple[int, UUID]] = {}
    seqs = sorted(row.seq for row in database.ask("guard/at_work.sql", settings.unhurried))
    for start in range(0, len(seqs), MESSAGES_A_READ):
        part = seqs[start : start + MESSAGES_A_READ]
        for row in database.ask("guard/tasks.sql", settings.unhurried, seqs=part, bytes=PAYLOAD_BYTES_READ):
            for reason in code.reasons(row):
                count, first = found.get((row.task, row.destination, reason), (0, row.id))
                found[row.task, row.destination, reason] = count + 1, first
    return sorted((Failing(*group, *rest) for group, rest in found.items()), key=lambda each: -each.number)


class _Code:
    """What this code and these settings take."""

    def __init__(self, settings: Settings, apps: Sequence[Celery]) -> None:
        self._settings = settings
        self._tasks: dict[str, Any] = {}
        for app in apps:
            app.loader.import_default_modules()
            self._tasks |= app.tasks
        # A million tasks have few kinds of calls.
        self._refusal, self._misfit = cache(self._refusal_of), cache(self._misfit_of)

    def reasons(self, row: Any) -> Iterator[str]:
        """Why a stored task would fail: it is refused before its arguments matter, or these do not fit, or what follows
        it would fail."""
        if refusal := self._refusal(row.task, row.destination):
            yield refusal
        elif row.content_type == "application/json" and not row.compressed and row.payload is not None:
            yield from self._of_body(row.task, row.payload)

    def _refusal_of(self, name: str, destination: str) -> str | None:
        configured = self._settings.destinations.get(destination)
        if configured is None or configured.scheme != "celery":
            return f"there is no celery:// destination {destination}"
        if name not in self._tasks:
            return "there is no such task"
        return None

    def _of_body(self, name: str, payload: bytes) -> Iterator[str]:
        try:
            args, kwargs, embedded = from_json(payload)
            if misfit := self._misfit(name, len(args), frozenset(kwargs)):
                yield misfit
            for kind in ("chain", "callbacks", "errbacks"):
                for signature in embedded.get(kind) or ():
                    follower = signature["task"]
                    if follower not in self._tasks:
                        yield f"it is followed by {follower}, and there is no such task"
                    elif kind != "errbacks":  # these get what Celery gives them
                        count = len(signature.get("args") or ()) + (not signature.get("immutable"))
                        if misfit := self._misfit(follower, count, frozenset(signature.get("kwargs") or ())):
                            yield f"it is followed by {follower}: {misfit}"
        except (ValueError, TypeError, KeyError, AttributeError):
            yield "its payload is not that of a task"

    def _misfit_of(self, name: str, args: int, keywords: frozenset[str]) -> str | None:
        """Why a task does not take so many arguments, and these keywords; None: it does. As with Celery's own check, a
        task without `typing` takes all."""
        task = self._tasks[name]
        try:
            if task.typing:
                inspect.signature(task.run).bind(*[None] * args, **dict.fromkeys(keywords))
        except TypeError as error:
            return str(error)
        return None
