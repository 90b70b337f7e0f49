"""A worker's main process watches the runs of its pool."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import Celery
from celery.worker import state
from sqlalchemy import Engine, text

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.supervised.run import Copy
from outbox_tasks.supervised.watch import Watch
from outbox_tasks.wire.celery_message import RUN
from tests.conftest import Rows, eventually
from tests.supervised.running import Call, Worker, app, call, hand_over, outbox, worker

__all__ = ["app", "call", "outbox", "worker"]


class Request:
    def __init__(self, copy: dict[str, Any]) -> None:
        self.id, self.request_dict = copy["id"], copy


def test_a_copy_runs_by_a_token_of_its_own_and_is_renewed_as_often_as_its_lease_needs(
    app: Celery, worker: Worker, call: Call, rows: Rows
) -> None:
    watch, id, former = Watch(worker.supervisor), call(), "11111111-1111-4111-8111-111111111111"
    watch._heartbeat = {"name": "w (tasks)", "kind": "tasks", "ago": 0.0, "facts": {"started": "now"}}
    watch._unknown = {"old": time.time() - 181, "new": time.time()}
    thread = threading.Thread(target=watch._run, daemon=True)
    thread.start()
    eventually(lambda: worker.runs.ask("report/heartbeats.sql"))  # it has looked, and waits for its next heartbeat
    assert watch._unknown.keys() == {"new"}
    request = Request(worker.copy(id))
    request.request_dict[RUN] |= {"lease": 1.5, "token": former}
    watch._on_received(sender=SimpleNamespace(app=app), request=request)
    copy = Copy.read(request.request_dict)
    assert copy is not None
    assert copy.token != former
    assert worker.runs.begin(copy.fence, copy.content, copy.lease)
    state.active_requests.add(request)
    try:
        begun_until = rows.one(id).locked_until
        eventually(lambda: rows.one(id).locked_until > begun_until, 3)
    finally:
        watch._ended = True
        watch._wanted.set()
        thread.join()
        state.active_requests.discard(request)
    assert rows.one(id).locked_until <= datetime.now(UTC), "it was active, so it is given up"


@pytest.fixture
def watch(worker: Worker) -> Watch:
    made = Watch(worker.supervisor)
    made._pid, made._consumer = os.getpid(), SimpleNamespace(pool=None)
    return made


def test_each_run_of_several_gets_what_is_its_own(
    app: Celery, worker: Worker, watch: Watch, call: Call, rows: Rows, engine: Engine, schema: str, caplog: Any
) -> None:
    sender = SimpleNamespace(app=app)
    ids = {name: call() for name in ("locked", "lost", "taken", "revoked", "waits")}
    requests = {name: Request(worker.copy(id)) for name, id in ids.items()}
    for name, request in requests.items():
        watch._on_received(sender, request)
        copy = Copy.read(request.request_dict)
        if copy is not None and name != "waits":
            assert worker.runs.begin(copy.fence, copy.content, copy.lease)
            state.active_requests.add(request)
    with engine.begin() as other:  # it is just ending
        other.execute(text(f"SELECT FROM {schema}.outbox_runs WHERE id = '{ids['locked']}' FOR UPDATE"))
        watch._write(worker.runs)
        assert watch._soon, "it is renewed soon"
    watch._write(worker.runs)
    assert not watch._soon
    watch._on_failure(requests["lost"].id, WorkerLostError())
    for name in ("revoked", "waits"):
        watch._on_revoked(sender, SimpleNamespace(**requests[name].request_dict))
    hand_over(rows, ids["taken"])
    watch._write(worker.runs)
    assert [name for name in ("locked", "lost") if rows.one(ids[name]).locked_until < datetime.now(UTC)] == ["lost"]
    assert [rows.state(ids[name]) for name in ("revoked", "waits")] == ["discarded"] * 2
    assert "ran out" not in caplog.text, "one look may be wrong"
    watch._write(worker.runs)
    assert f"the lease of task {requests['taken'].id} ran out while it ran" in caplog.text
    del request
    requests.clear()
    watch._write(worker.runs)
    assert watch._received == {}


def test_a_copy_of_a_task_that_is_not_known_is_noted_if_it_is_ours(
    worker: Worker, watch: Watch, call: Call, rows: Rows
) -> None:
    copy = Copy.read(worker.copy(id := call()))
    assert copy is not None
    for of, sooner in (("another", False), (copy.of, True)):
        watch._note_unknown(worker.runs, copy._replace(of=of), "w", time.monotonic() + 60)
        assert (rows.one(id).locked_until < datetime.now(UTC) + timedelta(seconds=60)) is sooner
        assert not watch._acts
    for until, tries in ((time.monotonic() + 60, 1), (0.0, 0)):
        watch._acts.clear()
        watch._note_unknown(worker.runs, copy, "w", until)
        assert len(watch._acts) == tries


def test_an_end_that_can_not_be_recorded_is_tried_again(worker: Worker, watch: Watch) -> None:
    tries: list[int] = []

    def record(*_: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise DatabaseUnavailable(url="", reason="it is away")

    watch._do(record)
    for _ in range(3):
        watch._write(worker.runs)
    assert len(tries) == 2
