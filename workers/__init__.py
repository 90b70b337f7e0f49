"""The deployment: one module per kind of worker: what it consumes, in which pool, with how many processes.

    celery -A workers.claim worker -n claim@%h
    celery -A workers.publish worker -n publish1@%h
    celery -A workers.maintenance worker -n maintenance@%h
    celery -A workers.feeds worker -n feeds@%h               # for sites with feeds

Each is the app of `outbox_tasks.worker.app`, narrowed. What the command line says (-Q, -c, -n) wins over what is
said here. More throughput: more publish workers, on as many hosts as you like.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import celeryd_init

from outbox_tasks.worker.app import app
from workers.alive import report_alive


def narrowed(name: str, *, queues: list[str], pool: str, concurrency: int) -> Celery:
    """The app, as a worker that consumes only these queues and calls itself `name`@host."""
    # The other queues stay known, so that this worker can still send to them.
    app.amqp.queues.select(queues)
    app.conf.update(worker_pool=pool, worker_concurrency=concurrency)
    report_alive(app)

    def take_name(instance: Any, **_: Any) -> None:
        # Celery calls every worker celery@host, and two workers of one name on a host answer for each other.
        if instance.hostname.startswith("celery@"):
            instance.hostname = f"{name}@{instance.hostname.removeprefix('celery@')}"

    celeryd_init.connect(take_name, weak=False)
    return app
