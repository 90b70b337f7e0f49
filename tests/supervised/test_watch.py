"""A worker's main process watches the runs of its pool."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.worker import state

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.supervised.run import Copy
from outbox_tasks.supervised.watch import Watch
from outbox_tasks.wire.celery_message import RUN
from tests.conftest import Rows, eventually
from tests.supervised.running import Call, Worker, app, call, outbox, worker

__all__ = ["app", "call", "outbox", "worker"]


class Request:
    def __init__(self, copy: dict[str, Any]) -> None:
        self.id, self.request_dict = copy["id"], copy


def test_a_copy_runs_by_a_token_of_its_own_and_is_renewed_as_often_as_its_lease_needs(
    app: Celery, worker: Worker, call: Call, rows: Rows
) -> None:
    watch, id, former = Watch(worker.supervisor), call(), "11111111-1111-4111-8111-111111111111"
    watch._heartbeat = {"name": "w (tasks)", "kind": "tasks", "ago": 0.0, "facts": {"started": "now"}}
    thread = threading.Thread(target=watch._run, daemon=True)
    thread.start()
    eventually(lambda: worker.runs.ask("report/heartbeats.sql"))  # it has looked, and waits for its next heartbeat
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
        state.active_requests.discard(request)
        watch._ended = True
        watch._wanted.set()
        thread.join()
    assert rows.one(id).locked_until <= datetime.now(UTC), "it was active, so it is given up"


def test_an_end_that_can_not_be_recorded_is_tried_again(worker: Worker) -> None:
    tries: list[int] = []

    def record(*_: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise DatabaseUnavailable(url="", reason="it is away")

    watch = Watch(worker.supervisor)
    watch._do(record)
    for _ in range(3):
        watch._write(worker.runs)
    assert len(tries) == 2
