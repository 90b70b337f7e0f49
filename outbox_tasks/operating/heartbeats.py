"""Who is alive: the workers' heartbeats, and when claims, sends, beat and maintenance last ran."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from outbox_tasks.database.activity import LATE_SECONDS, SERVER
from outbox_tasks.database.connection import Database
from outbox_tasks.settings import Settings

LATE_CLAIM = "late claim"
"""What ran, if the database did not answer a claim's statement in time."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A row of outbox_heartbeats: a worker, or something that runs now and then, and when it was last seen."""

    name: str
    kind: str
    """`worker`; `tasks`, a worker of the application that runs supervised tasks; or what ran: `claim`, `publish`,
    `beat`, `maintain` or `LATE_CLAIM`."""
    seen_at: datetime
    age: float
    """Seconds since then, by the database's clock."""
    facts: Mapping[str, Any]

    @property
    def alive(self) -> bool:
        return self.age <= LATE_SECONDS

    @property
    def queues(self) -> list[str]:
        """The queues that this worker consumes: of the relay's, or of the application's if it runs supervised tasks."""
        return self.facts.get("queues") or []

    @property
    def shares_name(self) -> bool:
        """Whether several workers have this name: each overwrites what the other has written. See report/beat.sql."""
        return int(self.facts.get("met") or 0) > 1


class Heartbeats:
    """All heartbeats of one outbox. A worker that stopped in good order has none. That of a killed worker stays for a
    day."""

    def __init__(self, rows: Iterable[Heartbeat] = ()) -> None:
        rows = list(rows)
        self.workers = [row for row in rows if row.kind == "worker"]
        self.supervising = [row for row in rows if row.kind == "tasks"]
        """The workers of the application that run supervised tasks."""
        self.last = {row.kind: row for row in rows if row.kind not in ("worker", "tasks", SERVER)}
        """When `claim`, `publish`, `beat` and `maintain` ran last."""

    @classmethod
    def read(cls, database: Database) -> Heartbeats:
        return cls(Heartbeat(*row) for row in database.ask("report/heartbeats.sql"))

    @property
    def alive(self) -> list[Heartbeat]:
        return [worker for worker in self.workers if worker.alive]

    @property
    def unknown_tasks(self) -> dict[str, list[str]]:
        """The supervised tasks that came to live workers lately and that these don't know, with the workers' names."""
        unknown: dict[str, list[str]] = {}
        for worker in self.supervising:
            for task in sorted(worker.facts.get("unknown") or ()) if worker.alive else ():
                unknown.setdefault(task, []).append(worker.name.removesuffix(" (tasks)"))
        return unknown

    @property
    def shared_names(self) -> list[str]:
        """Names that several live workers have: nobody knows which queues all of them consume."""
        return [worker.name for worker in self.alive if worker.shares_name]

    def consumers(self, queue: str) -> list[Heartbeat]:
        return [worker for worker in self.alive if queue in worker.queues]

    def last_consumer(self, queue: str) -> Heartbeat | None:
        """The worker of a queue that was seen last, alive or not."""
        return min((w for w in self.workers if queue in w.queues), key=lambda worker: worker.age, default=None)

    def age(self, kind: str) -> float | None:
        """Seconds since `claim`, `publish`, `beat` or `maintain` ran last; None: never."""
        return self.last[kind].age if kind in self.last else None


def longest_pause(settings: Settings) -> float:
    """Seconds between two claims, or two ticks of beat, after which they count as stopped."""
    return max(LATE_SECONDS, 10 * settings.claim_interval)


def facts_of(consumer: Any, queues: Iterable[str]) -> dict[str, Any]:
    """What the heartbeats of a worker say of it, as it starts. `queues`: those that its heartbeats are about."""
    return {
        "queues": sorted(queues),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "pool": type(consumer.pool).__module__.rpartition(".")[2],
        "concurrency": consumer.pool.num_processes,
        "version": version("outbox-tasks"),
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
