"""A worker's main process watches the runs of its pool."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from billiard.exceptions import WorkerLostError
from celery import Celery, signals
from celery.concurrency.prefork import TaskPool
from celery.contrib.testing.worker import TestWorkController
from celery.exceptions import TimeLimitExceeded
from celery.worker import state
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised.run import Copy
from outbox_tasks.supervised.watch import Watch
from tests.claims import drain_batches
from tests.conftest import MakeStore, Rows, eventually
from tests.supervised.running import Call, Worker, app, away, call, hand_over, make_app, outbox, worker

__all__ = ["app", "call", "outbox", "worker"]


class Request:
    def __init__(self, copy: dict[str, Any]) -> None:
        self.id, self.request_dict = copy["id"], copy

    def cancel(self, *_: Any) -> None: ...


def test_what_becomes_of_the_copies_of_a_worker_is_on_their_rows(
    new_store: MakeStore, rows: Rows, engine: Engine, schema: str, broker_url: str, monkeypatch: Any, caplog: Any
) -> None:
    own = {"url": "celery://", "confirm": "run", "run_lease": 1.5}
    store = new_store(destinations={"tasks": own}, broker_url=broker_url, nudge=False)
    with redis.Redis.from_url(broker_url) as client:
        client.flushdb()
    watches: list[Watch] = []
    monkeypatch.setattr("outbox_tasks.supervised.supervise.Watch", lambda its: watches.append(Watch(its)) or watches[0])
    app, go_on = make_app(), threading.Event()
    app.conf.broker_url = broker_url
    monkeypatch.setattr("celery._state.default_app", app)  # whose tasks the threads run
    app.act = lambda task: task.name == "act" and go_on.wait(60)
    outbox = Outbox(store.settings, celery=app)
    outbox.supervise(app)
    Outbox(store.settings.replace(stale_after=1.0)).supervise(app)
    assert "with other settings already" in caplog.text
    [watch] = watches
    watch._unknown = {"old": time.time() - 181, "new": time.time()}
    calls = dict.fromkeys(("act", "next", "unknown", "revoked"), "")
    with Session(engine) as session, session.begin():
        for name in calls:
            task = "next" if name == "revoked" else name
            calls[name] = outbox.apply_async(session, task, queue="celery").id
    ids = {name: str(row.id) for row in rows.hot() for name, id in calls.items() if row.aggregate_id == id}
    publishers = Publishers(store.settings)
    drain_batches(store, publishers)
    publishers.close()
    state.revoked.add(calls["revoked"])
    hooked = lambda: "_outbox_hooked" in vars(type(app.tasks["act"]))  # noqa: E731
    signals.worker_init.send(sender=(stranger := Mock(app=make_app())))
    assert not hooked()
    worker = TestWorkController(app=app, pool="threads", concurrency=2, hostname="w@here", without_mingle=True)
    assert hooked()
    thread = threading.Thread(target=worker.start, daemon=True)
    thread.start()
    worker.ensure_started()
    with away(engine, schema, "heartbeats"):
        for sender in (stranger, worker.consumer):
            signals.worker_ready.send(sender=sender)
            assert (watch._thread is not None) is (sender is worker.consumer)
        eventually(lambda: "the leases of running tasks were not renewed" in caplog.text)
    try:
        ended = {"next": "sent", "revoked": "discarded"}
        eventually(lambda: {name: rows.state(ids[name]) for name in ended} == ended)
        eventually(lambda: [entry["what"] for entry in rows.one(ids["unknown"]).history or ()] == ["not known"])
        begun_until = rows.one(ids["act"]).locked_until
        eventually(lambda: rows.one(ids["act"]).locked_until > begun_until)
        [heartbeat] = eventually(lambda: worker_heartbeats(store, "unknown"))
        assert heartbeat.facts["unknown"].keys() == {"new", "unknown"}
    finally:
        signals.worker_shutdown.send(sender=worker)
        lost = rows.one(ids["act"]).locked_until <= datetime.now(UTC)
        go_on.set()
        state.should_stop = 0
        thread.join(20)
        state.should_stop = None
        app.outbox_supervisor.close()
    assert lost, "it was active, so it is given up"
    assert worker_heartbeats(store, "new") == []


def worker_heartbeats(store: Store, task: str) -> list[Any]:
    """The heartbeats of workers that do not know a task."""
    return [each for each in store.ask("report/heartbeats.sql") if task in each.facts.get("unknown", ())]


@pytest.fixture
def watch(worker: Worker) -> Watch:
    made = Watch(worker.supervisor)
    made._pid, made._consumer = os.getpid(), Mock(pool=TaskPool(1))
    return made


def test_each_run_of_several_gets_what_is_its_own(
    app: Celery, worker: Worker, watch: Watch, call: Call, rows: Rows, engine: Engine, schema: str, caplog: Any
) -> None:
    sender = SimpleNamespace(app=app)
    ids = {name: call() for name in ("locked", "lost", "late", "done", "taken", "revoked", "waits")}
    requests = {name: Request(worker.copy(id)) for name, id in ids.items()}
    watch._on_received(SimpleNamespace(app=None), requests["waits"])
    assert watch._received == {}, "it is another app's"
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
    watch._pid = 0  # a process of the pool, which has all this from its parent
    watch._on_failure(requests["lost"].id, WorkerLostError())
    watch._on_revoked(sender, SimpleNamespace(**requests["revoked"].request_dict))
    watch._pid = os.getpid()
    watch._on_failure(requests["lost"].id, ValueError())
    assert not watch._acts
    watch._on_failure(requests["lost"].id, WorkerLostError())
    watch._on_failure(requests["late"].id, TimeLimitExceeded(1))
    done = Copy.read(requests["done"].request_dict)
    assert done is not None
    assert worker.runs.done(done.fence)
    for name in ("revoked", "waits"):
        watch._on_revoked(sender, SimpleNamespace(**requests[name].request_dict), expired=name == "waits")
    hand_over(rows, ids["taken"])
    watch._write(worker.runs)
    assert [name for name in ("locked", "lost") if rows.one(ids[name]).locked_until < datetime.now(UTC)] == ["lost"]
    states = {"revoked": "discarded", "waits": "discarded", "late": "dead"}
    assert {name: rows.state(ids[name]) for name in states} == states
    assert {str(row.id): row.last_error_code for row in rows.archived()}.items() >= {
        (ids["revoked"], "revoked"), (ids["waits"], "expired")}  # fmt: skip
    assert "ran out" not in caplog.text, "one look may be wrong"
    watch._write(worker.runs)
    for _ in range(2):
        watch._write(worker.runs)
    assert [record.args[0] for record in caplog.records if "ran out" in record.msg] == [requests["taken"].id]
    [stop] = watch._consumer.timer.call_after.call_args_list
    assert stop.args == (0, requests["taken"].cancel, (watch._consumer.pool, "KILL"))
    del stop
    watch._consumer.reset_mock()
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

    watch._do(lambda _: 1 / 0)  # what can't be recorded at all holds up no other
    watch._do(record)
    for _ in range(3):
        watch._write(worker.runs)
    assert len(tries) == 2
