"""The workers that answer on a broker, also those of other apps, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu import Connection

from outbox_tasks.broker.names import CLAIM_TASK

ANSWER_SECONDS = 1.5
"""Seconds that workers have to answer. A busy worker with a solo pool can't."""


@dataclass
class Worker:
    """A worker that answers. Workers that share a name count as one."""

    name: str
    answers: int = 0
    queues: set[str] = field(default_factory=set)
    tasks: set[str] | None = None
    """The tasks that it knows; None: no answer in time."""
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
    workers: dict[str, Worker] = {}

    def ask(what: str, count: int | None = None) -> Iterator[tuple[Worker, Any]]:
        # Not with `inspect`: it keeps only one answer of workers that share a name. `count`: no need to wait for more.
        waits: Any = {"reply": True, "timeout": ANSWER_SECONDS, "limit": count, "connection": connection}
        for answers in app.control.broadcast(what, {"builtins": True} if what == "registered" else {}, **waits) or ():
            for name, answer in answers.items():
                yield workers.setdefault(name, Worker(name)), answer

    for worker, answer in ask("active_queues"):
        worker.answers += 1
        worker.queues |= {queue["name"] for queue in answer if isinstance(queue, dict)}
    if count := sum(worker.answers for worker in workers.values()):
        for worker, answer in ask("registered", count):
            worker.tasks = (worker.tasks or set()) | {str(task).partition(" ")[0] for task in answer}
        for worker, answer in ask("stats", count):
            options = answer.get("broker", {}).get("transport_options") if isinstance(answer, dict) else None
            if isinstance(options, dict):
                worker.visibility.add(float(options.get("visibility_timeout", 3600)))  # an hour is kombu's default
    return sorted(workers.values(), key=lambda worker: worker.name)
