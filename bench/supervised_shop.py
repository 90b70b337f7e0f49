"""The application of the bench `supervised`: with SHOP_SUPERVISES its workers supervise, else it is plain Celery.

Each run of a task but `noop` writes two lines into a file: when its body began, and when it ended. Its effect is a row.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.database.connection import engine_url

SUPERVISES = bool(os.environ.get("SHOP_SUPERVISES"))

app = Celery("shop", broker=os.environ.get("SHOP_BROKER_URL", ""), set_as_current=False)
app.conf.update(
    task_acks_late=bool(os.environ.get("SHOP_ACKS_LATE")),
    task_reject_on_worker_lost=bool(os.environ.get("SHOP_ACKS_LATE")),
    task_ignore_result=True,
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("SHOP_VISIBILITY", 3600)), "socket_timeout": 5,
        "socket_connect_timeout": 2,
    },
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_prefetch_multiplier=4,
    worker_lost_wait=0.5,
)  # fmt: skip
outbox = Outbox()
if SUPERVISES:
    outbox.supervise(app)

engines: dict[int, Any] = {}


def begin() -> Session:
    """A session of this process."""
    if os.getpid() not in engines:
        engines[os.getpid()] = create_engine(engine_url(os.environ["OUTBOX_DATABASE_URL"]), pool_size=8)
    return Session(engines[os.getpid()])


@app.task(name="shop.noop")  # type: ignore[untyped-decorator]
def noop(n: int) -> None:
    """Nothing."""


def shape(function: Any) -> Any:
    """A task of this name that writes down its runs."""

    def body(self: Task, name: str, *args: Any) -> str:
        log = Path(os.environ["SHOP_RUNS"]) / f"{os.getpid()}.log"

        def write(what: str) -> None:
            with log.open("a") as lines:
                lines.write(f"{name} {what} {time.time():.6f} {os.getpid()}\n")

        write("begins")
        try:
            function(self, name, *args)
        finally:
            write("ends")
        return name

    return app.task(name=f"shop.{function.__name__}", bind=True, max_retries=5)(body)


def effect(name: str, hold: float = 0.0, *, undone: bool = False) -> None:
    """What the task is for; committed together with its end, if it is supervised. `hold`: seconds for which the
    transaction stays open then. `undone`: first in a savepoint that is rolled back."""
    with begin() as session, session.begin():
        if undone:
            with session.begin_nested() as savepoint:
                _effect(session, name)
                savepoint.rollback()
        _effect(session, name)
        time.sleep(hold)


def _effect(session: Session, name: str) -> None:
    session.execute(text("INSERT INTO effects (name) VALUES (:name)"), {"name": name})
    if SUPERVISES:
        outbox.complete(session, name)


@shape
def quick(task: Task, name: str) -> None:
    effect(name)


@shape
def long(task: Task, name: str) -> None:
    time.sleep(random.uniform(0.5, 3.0))
    effect(name)


@shape
def holding(task: Task, name: str) -> None:
    effect(name, random.uniform(6.0, 10.0))


@shape
def undone(task: Task, name: str) -> None:
    effect(name, undone=True)


@shape
def retrying(task: Task, name: str) -> None:
    if task.request.retries < 2:
        raise task.retry(exc=OSError("away"), countdown=0.5)
    effect(name)


@shape
def failing(task: Task, name: str) -> None:
    raise ValueError(name)


@shape
def step(task: Task, before: str, name: str = "") -> None:
    effect(before)


@shape
def deadly(task: Task, name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
