"""Supervised tasks while their database is away, lacks rights or is older: nothing runs unfenced, nothing is lost."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine

from outbox_tasks import Outbox
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.supervised import supervisor
from outbox_tasks.supervised.store import Runs
from outbox_tasks.writing.capture import capturing
from outbox_tasks.writing.record import Target
from tests.conftest import Rows
from tests.supervised.running import Call, Worker, app, away, call, execute, outbox, worker

__all__ = ["app", "call", "outbox", "worker"]


@pytest.fixture
def queue(app: Celery, redis_url: str, worker: Worker) -> Iterator[Callable[[], list[Any]]]:
    """The messages that a task has sent to a queue of a real broker."""
    name = f"outbox_test_{uuid4().hex[:8]}"
    app.conf.broker_url = redis_url
    app.conf.task_default_queue = name
    with redis.Redis.from_url(redis_url) as client:
        yield lambda: [json.loads(raw) for raw in client.lrange(name, 0, -1)]  # type: ignore[union-attr]
        client.delete(name)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BEGIN_TRIES_SECONDS", 0.3)
    monkeypatch.setattr(supervisor, "PAUSES_SECONDS", (0.05, 0.1))


def test_a_task_that_can_not_begin_goes_back_into_its_queue_and_does_not_run(
    app: Celery, worker: Worker, call: Call, queue: Any, rows: Rows, engine: Engine, schema: str, caplog: Any
) -> None:
    id = call(1, countdown=0, headers={"tenant": "t"})
    copy = worker.copy(id)
    stored: list[Any] = []
    with away(engine, schema), capturing(Target(stored.append, lambda *_: True)):
        worker.trace(copy)
    assert stored == []
    assert app.seen == []
    assert "because it can't begin" in caplog.text
    [sent] = queue()
    assert sent["headers"]["id"] == copy["id"]
    assert sent["headers"]["eta"] is not None
    assert [sent["headers"][name] for name in ("retries", "tenant", "outbox")] == [0, "t", copy["outbox"]]
    args, kwargs, embed = json.loads(b64decode(sent["body"]))
    worker.trace({**copy, **sent["headers"], **embed, "args": args, "kwargs": kwargs})
    assert app.seen == [("act", (1,))]
    assert rows.state(id) == "sent"


@pytest.mark.parametrize(("what", "acts"), [("begin", True), ("done", True), ("done", False)])
def test_a_begin_or_end_is_tried_again_and_counts_if_only_its_answer_is_lost(
    worker: Worker, call: Call, rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: Any, what: str, acts: bool
) -> None:
    act = getattr(Runs, what)

    def lose_the_answer(*args: Any) -> None:
        monkeypatch.setattr(Runs, what, act)
        if acts:
            act(*args)
        raise DatabaseUnavailable(url="", reason="the connection is lost")

    id = call()
    monkeypatch.setattr(Runs, what, lose_the_answer)
    worker.run(id)
    assert rows.state(id) == "sent"
    assert "its lease had run out" not in caplog.text


def test_an_end_that_is_never_recorded_leaves_the_row_to_its_lease(
    app: Celery, worker: Worker, call: Call, rows: Rows, engine: Engine, schema: str, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(supervisor, "END_TRIES_SECONDS", 0.3)
    id = call()
    gone = away(engine, schema)
    app.act = lambda task: gone.__enter__()
    worker.run(id)
    gone.__exit__(None, None, None)
    assert "could not be recorded, so it will run again" in caplog.text
    assert rows.state(id) == "running"


def test_a_worker_says_at_its_start_what_it_lacks(
    outbox: Outbox, worker: Worker, engine: Engine, schema: str, caplog: Any
) -> None:
    worker.supervisor.check()
    assert caplog.text == ""
    role = f"outbox_test_{uuid4().hex[:12]}"
    execute(engine, f"CREATE ROLE {role} LOGIN PASSWORD 'poor'")
    try:
        execute(engine, f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {schema}.outbox_messages, "
                        f"{schema}.outbox_versions TO {role}")  # fmt: skip
        url = engine.url.set(username=role, password="poor").render_as_string(hide_password=False)
        poor = supervisor.Supervisor(Celery(set_as_current=False), outbox.settings.replace(database_url=url))
        poor.check()
        assert "puts them off: " in caplog.text
        assert "permission denied for table outbox_runs" in caplog.text
    finally:
        execute(engine, f"DROP OWNED BY {role}; DROP ROLE {role}")
