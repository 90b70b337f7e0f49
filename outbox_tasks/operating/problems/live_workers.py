"""The workers that answer on a broker, also those of other apps, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu import Connection

from outbox_tasks.broker.names import CLAIM_TASK

WAIT = 1.5
"""Seconds that workers have to answer. A busy worker with a solo pool can't."""

DEFAULT_VISIBILITY = 3600.0
"""kombu's default."""


@dataclass
class Worker:
    """A worker that answers. Workers that share a name count as one."""

    name: str
    answers: int = 0
    queues: set[str] = field(default_factory=set)
    tasks: dict[str, str] | None = None
    """The tasks that it knows, with the attributes that were asked for; None: no answer in time."""
    visibility: set[float] = field(default_factory=set)
    """Its visibility timeout: after this time it takes an unacknowledged task for lost."""

    @property
    def foreign(self) -> bool:
        """Whether its app lacks the relay's tasks."""
        return self.tasks is not None and CLAIM_TASK not in self.tasks

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(sorted(self.queues)) or 'no queues'})"


def ask_workers(app: Celery, connection: Connection) -> Sequence[Worker]:
    """The workers, by name."""
    found: dict[str, Worker] = {}

    def ask(what: str, count: int | None = None, **arguments: Any) -> list[tuple[Worker, Any]]:
        # Not with `inspect`: it keeps only one answer of workers that share a name.
        answers = app.control.broadcast(what, arguments, reply=True, timeout=WAIT, limit=count, connection=connection)
        pairs = (pair for answer in answers or () for pair in answer.items())
        return [(found.setdefault(name, Worker(name)), answer) for name, answer in pairs]

    queues = ask("active_queues")
    for worker, answer in queues:
        worker.answers += 1
        worker.queues |= {queue["name"] for queue in answer if isinstance(queue, dict)}
    if queues:
        # As many will answer again: no need to wait for more.
        for worker, answer in ask("registered", len(queues), taskinfoitems=["time_limit"], builtins=True):
            parts = (str(task).partition(" ") for task in answer)
            worker.tasks = (worker.tasks or {}) | {name: attributes for name, _, attributes in parts}
        for worker, answer in ask("stats", len(queues)):
            options = answer.get("broker", {}).get("transport_options") if isinstance(answer, dict) else None
            if isinstance(options, dict):
                worker.visibility.add(float(options.get("visibility_timeout", DEFAULT_VISIBILITY)))
    return sorted(found.values(), key=lambda worker: worker.name)
