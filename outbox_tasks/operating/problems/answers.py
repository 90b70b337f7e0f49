"""What a broker says of itself when it is asked how it is, and the workers that answer on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu import Connection, Producer

from outbox_tasks.broker.broker import CLUSTER, Broker, queue_length
from outbox_tasks.broker.names import CLAIM_TASK, queues_of

WORKERS_ANSWER_SECONDS = 1.5
"""Seconds that workers have to answer. A busy worker with a solo pool can't."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A broker that does not answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """A broker that answers."""

    lengths: dict[str, int]
    """How many of Celery's messages wait in each of the relay's queues."""
    info: dict[str, Any] | None
    """The INFO of a Redis; None: it is not a Redis."""
    seconds: float
    """How long it took to say the length of a queue: that is a round trip or two."""

    @classmethod
    def of(cls, broker: Broker, reached: threading.Event) -> BrokerAnswer | Silence:
        """Ask it: some sixteen round trips. `reached` is set after the first."""
        try:
            with broker.producer() as producer:
                producer.connection.ensure_connection(max_retries=1)
                reached.set()
                info = _info(producer)
                if info is not None and info.get("cluster_enabled"):
                    return Silence(CLUSTER)
                began = time.monotonic()
                lengths = {queue: queue_length(producer, queue) for queue in queues_of(broker.settings)}
                seconds = (time.monotonic() - began) / len(lengths)
        except Exception as failed:  # whatever a transport raises, the broker gives no answer
            return Silence(str(getattr(failed, "reason", failed)).rstrip("."))
        return cls(lengths, info, seconds)


def _info(producer: Producer) -> dict[str, Any] | None:
    """A Redis is asked only for INFO: managed servers forbid CONFIG."""
    channel = producer.channel
    if not hasattr(channel, "client"):
        return None
    with channel.conn_or_acquire() as client:
        return dict(client.info())


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
        waits: Any = {"reply": True, "timeout": WORKERS_ANSWER_SECONDS, "limit": count, "connection": connection}
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
