"""An application whose workers run supervised tasks. Each run of a task writes down that it begins and ends."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import redis
from celery import Celery

from outbox_tasks import Outbox

BROKER = os.environ.get("OUTBOX_BROKER_URL", "")

app = Celery("shop", broker=BROKER, backend=BROKER)
app.conf.worker_lost_wait = 0.5
outbox = Outbox(celery=app)
outbox.supervise(app)


def note(client: redis.Redis, name: str, what: str) -> None:
    client.rpush("runs", f"{name} {what}")


def body(self: Any, name: str, act: str = "") -> str:
    """Do what `act` says: the name of a function here."""
    with redis.Redis.from_url(BROKER) as client:
        note(client, name, f"begins {self.request.retries}")
        if act:
            globals()[act](self, client, name)
        note(client, name, "ends")
    return name


def wait(task: Any, client: redis.Redis, name: str) -> None:
    """Until somebody lets it go."""
    while not client.get(f"go {name}"):
        time.sleep(0.05)


def fail(task: Any, client: redis.Redis, name: str) -> None:
    raise ValueError(name)


def die(task: Any, client: redis.Redis, name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def retry(task: Any, client: redis.Redis, name: str) -> None:
    if task.request.retries < 2:
        raise task.retry(exc=OSError("away"), countdown=0.2)


run = app.task(name="shop.run", bind=True)(body)
late = app.task(name="shop.late", bind=True, acks_late=True, reject_on_worker_lost=True)(body)
brief = app.task(name="shop.brief", bind=True, time_limit=1)(body)
