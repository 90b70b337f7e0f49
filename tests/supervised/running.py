"""A worker of supervised tasks inside the test: it traces copies as Celery's workers do, on real rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from sqlalchemy import Engine, func, text
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.model import content
from outbox_tasks.settings import Settings
from outbox_tasks.supervised.hooks import hook
from outbox_tasks.supervised.store import Runs
from outbox_tasks.supervised.supervise import supervise
from outbox_tasks.wire.celery_message import ENVELOPE, RUN, TaskMessage
from tests.conftest import MakeSettings, Rows, seconds_from_now

NOWHERE = "redis://127.0.0.1:1/0"
"""Nobody listens there: a run that sends anything to its broker fails."""

Call = Callable[..., str]


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


@contextmanager
def away(engine: Engine, schema: str, table: str = "messages") -> Iterator[None]:
    """A table is not there."""
    execute(engine, f"ALTER TABLE {schema}.outbox_{table} RENAME TO elsewhere")
    try:
        yield
    finally:
        execute(engine, f"ALTER TABLE {schema}.elsewhere RENAME TO outbox_{table}")


def hand_over(rows: Rows, id: str) -> None:
    """As the relay's settle: the broker has the task."""
    rows.change([id], handed_at=func.clock_timestamp(), begun=False, lease=uuid4(), attempts=1,
                locked_until=seconds_from_now(3600))  # fmt: skip


def copy_of(rows: Rows, runs: Runs, id: str, lease: float = 30.0) -> dict[str, Any]:
    """A copy of a row's task, as a worker gets it."""
    row = rows.one(id)
    task = TaskMessage.loads(row.headers[ENVELOPE])
    args, kwargs, embed = json.loads(row.payload)
    header = {"id": id, "of": runs.identity, "lease": lease, "content": content(row.payload, row.headers)}
    delivery = {"exchange": task.exchange, "routing_key": task.routing_key, "priority": task.priority}
    return {**task.headers, **embed, "args": args, "kwargs": kwargs, "delivery_info": delivery, RUN: header,
            "properties": task.properties}  # fmt: skip


class Worker:
    """Runs copies of an app's supervised tasks."""

    def __init__(self, app: Celery, settings: Settings, rows: Rows) -> None:
        self.app, self.rows = app, rows
        self.supervisor = supervise(app, settings)
        app.finalize()
        hook(self.supervisor)
        self.runs = Runs.connect(settings)

    def copy(self, id: str) -> dict[str, Any]:
        hand_over(self.rows, id)
        return copy_of(self.rows, self.runs, id)

    def trace(self, copy: dict[str, Any]) -> Any:
        """Run a copy. Returns what the task returned or raised."""
        task = self.app.tasks[copy["task"]]
        trace = build_tracer(task.name, task, app=self.app)
        return trace(copy["id"], copy["args"], copy["kwargs"], copy).retval

    def run(self, id: str) -> Any:
        """Hand a row's task over, and run it."""
        return self.trace(self.copy(id))

    def close(self) -> None:
        self.runs.close()
        self.supervisor.close()


def make_app() -> Celery:
    app = Celery("shop", broker=NOWHERE, set_as_current=False)
    app.conf.broker_transport_options = {"socket_connect_timeout": 1, "max_retries": 0}
    app.conf.task_publish_retry = False
    app.act = lambda task, *args: args
    app.seen = []

    def body(self: Any, *args: Any, **kwargs: Any) -> Any:
        app.seen.append((self.name, args))
        return app.act(self, *args, **kwargs)

    for name, options in {"act": {}, "next": {}, "auto": {"autoretry_for": (OSError,), "max_retries": 1}}.items():
        app.task(name=name, bind=True, shared=False, default_retry_delay=7, **options)(body)
    return app


@pytest.fixture
def app() -> Celery:
    """Its task `act` does what `app.act` says; `app.seen` has the calls."""
    return make_app()


@pytest.fixture
def outbox(settings: MakeSettings, rows: Rows, app: Celery) -> Outbox:
    own = {"url": "celery://", "confirm": "run"}
    return Outbox(
        settings(
            nudge=False, destinations={"tasks": own, "others": {**own, "on_dead": "skip"}}, routes={"*": ["tasks"]}
        ),
        celery=app,
    )


@pytest.fixture
def worker(outbox: Outbox, app: Celery, rows: Rows) -> Iterator[Worker]:
    made = Worker(app, outbox.settings, rows)
    yield made
    made.close()


@pytest.fixture
def call(outbox: Outbox, app: Celery, engine: Engine, rows: Rows) -> Call:
    """Stores a call of the task `act`, or of a signature. Returns the id of its row."""

    def call(*args: Any, task: Any = None, **options: Any) -> str:
        before = {row.id for row in rows.hot()}
        with Session(engine) as session, session.begin():
            outbox.apply_async(session, app.tasks["act"] if task is None else task, args, **options)
        [row] = [row for row in rows.hot() if row.id not in before]
        return str(row.id)

    return call
