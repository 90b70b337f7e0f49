"""With task events on, whoever watches sees each single as a publish task of its own, a drain as a task that says what
it did, and no claim that did nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State, Task
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.names import CLAIM_TASK, DRAIN_TASK, PUBLISH_TASK
from outbox_tasks.settings import CLAIM_QUEUE
from outbox_tasks.worker.requests import NOTHING_CLAIMED
from tests.acceptance.conftest import cluster, settled
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

TOLD: dict[str, dict[str, Any]] = {
    "SUCCESS": {},
    "FAILURE": {"refuse": "refused"},
    "RETRY": {"fail": 99, "retry_after": 3600},
}
"""What a message tells its destination to do, by the state in which its task then ends."""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return {"backoff_base": 0.2}


@pytest.fixture(scope="module")
def destinations(destinations: dict[str, Any]) -> dict[str, Any]:
    return {
        "few": destinations["told"],
        "single": {**destinations["told"], "singles": "all"},
        "drained": {**destinations["told"], "singles": 0},
    }


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    relay.beat()
    return cluster(relay, [relay.claim(), relay.publish(1, 2)])


class Watcher:
    """Receives events as Flower does, into Celery's own picture of the cluster."""

    def __init__(self, app: Celery) -> None:
        self.state = State(max_tasks_in_memory=100_000)
        self._app = app
        self._over = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self.state.event})
            with receiver.consumer_context() as (consuming, _channel, _consumers):
                while not self._over.is_set():
                    with suppress(TimeoutError):
                        consuming.drain_events(timeout=0.2)
                    self._ready.set()  # subscribed by now

    def __enter__(self) -> Watcher:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def task(self, id: str, *states: str) -> Task:
        """The task of a message, once it is in one of the states."""
        return eventually(lambda: (task := self.state.tasks.get(id)) and task.state in states and task)


@pytest.fixture
def watcher(celery_setup: CeleryTestSetup) -> Iterator[Watcher]:
    with Watcher(celery_setup.app) as made:
        yield made


@pytest.mark.parametrize("to", ["few", "single"])
def test_every_message_is_seen_as_a_publish_task_of_its_own(
    watcher: Watcher, engine: Engine, outbox: Outbox, rows: Rows, stream: Stream, to: str
) -> None:
    with Session(engine) as session, session.begin():
        ids = {
            state: [str(outbox.publish(session, f"order.{state.lower()}", told, to=to)) for _ in range(12)]
            for state, told in TOLD.items()
        }
    tasks = {state: [watcher.task(id, state) for id in ids[state]] for state in TOLD}
    rows.change(ids["RETRY"], status="dead", lease=None)  # before anything may fail: other tests wait for all messages
    for state in TOLD:
        for task in tasks[state]:
            assert task.name == PUBLISH_TASK
            assert f"order.{state.lower()}" in task.args
            assert to in task.args
            assert (task.runtime is not None) == (state == "SUCCESS")
            assert (task.received is not None, task.started is not None) == (True, True)
    assert DRAIN_TASK not in {task.name for task in watcher.state.tasks.values()}
    assert sorted(set(stream.ids()) & set(ids["SUCCESS"])) == sorted(ids["SUCCESS"])


def test_a_message_that_fails_first_is_one_task_with_retries(
    watcher: Watcher, engine: Engine, outbox: Outbox, rows: Rows
) -> None:
    with Session(engine) as session, session.begin():
        good = [str(outbox.publish(session, "order.created", {}, to="few")) for _ in range(11)]
        id = str(outbox.publish(session, "order.stubborn", {"fail": 2}, to="few"))
    task = watcher.task(id, "SUCCESS")
    assert (task.retries, task.name) == (2, PUBLISH_TASK)
    assert task.retried is not None
    assert "order.stubborn" in task.args
    assert [watcher.task(other, "SUCCESS").retries for other in good] == [0] * 11
    settled(rows)


def test_a_message_that_uses_up_its_attempts_is_seen_to_fail(
    watcher: Watcher, engine: Engine, outbox: Outbox, rows: Rows
) -> None:
    with Session(engine) as session, session.begin():
        id = str(outbox.publish(session, "order.hopeless", {"fail": 99}, to="single"))
    task = watcher.task(id, "FAILURE")
    assert (task.retries, rows.one(id).attempts) == (2, 3)
    assert task.exception


def test_a_claim_is_seen_if_it_did_something(
    watcher: Watcher, engine: Engine, outbox: Outbox, rows: Rows, celery_setup: CeleryTestSetup
) -> None:
    settled(rows)
    for _ in range(5):
        celery_setup.app.send_task(CLAIM_TASK, queue=CLAIM_QUEUE)
    with Session(engine) as session, session.begin():
        id = str(outbox.publish(session, "order.created", {}, to="few", key="a"))
    watcher.task(id, "SUCCESS")

    def results() -> list[str]:
        claims = [task for task in watcher.state.tasks.values() if task.name == CLAIM_TASK and task.state == "SUCCESS"]
        assert all(claim.received and claim.started for claim in claims)
        return [claim.result for claim in claims]

    eventually(lambda: repr("claimed 1 singles, started 0 drains, 0 dead") in results())
    assert repr(NOTHING_CLAIMED) not in results()


def test_the_code_of_a_publisher_may_be_any_text(watcher: Watcher, engine: Engine, outbox: Outbox, rows: Rows) -> None:
    codes = ["rate limited", "can't", "429:slow down"]
    with Session(engine) as session, session.begin():
        bad = {code: str(outbox.publish(session, "order.bad", {"refuse": code}, to="few")) for code in codes}
        good = [str(outbox.publish(session, "order.created", {}, to="few")) for _ in range(9)]
    for code, id in bad.items():
        eventually(lambda: rows.state(id) == "dead")  # noqa: B023 - it is called at once
        assert code in watcher.task(id, "FAILURE").exception
    for id in good:
        watcher.task(id, "SUCCESS")


def test_a_drain_is_seen_as_a_task_that_says_what_it_did(
    watcher: Watcher, engine: Engine, outbox: Outbox, rows: Rows
) -> None:
    with Session(engine) as session, session.begin():
        ids = {str(outbox.publish(session, "order.created", {}, to="drained")) for _ in range(20)}
        outbox.publish(session, "order.refused", {"refuse": "not_wanted"}, to="drained")
    settled(rows)

    def results() -> list[str]:
        drains = [task for task in watcher.state.tasks.values() if task.name == DRAIN_TASK and task.state == "SUCCESS"]
        assert all("drained" in drain.args for drain in drains)
        return [drain.result for drain in drains]

    eventually(lambda: repr("dead 1, sent 20") in results())
    assert not ids & watcher.state.tasks.keys()
