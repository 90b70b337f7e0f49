"""With the profile `per-message`, real workers run a Celery task for each message, and nothing else happens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.names import BUNDLE_TASK, PUBLISH_TASK
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.acceptance.test_events import Watcher
from tests.conftest import Rows, Stream, eventually

COUNT = 60


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return {"profile": "per-message", "backoff_base": 0.2}


@pytest.fixture(scope="module")
def destinations(destinations: dict[str, Any]) -> dict[str, Any]:
    """One alone: a message that finds no slot of its destination is a task twice."""
    return {"told": destinations["told"]}


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    relay.beat()
    return cluster(relay, [relay.claim(), relay.publish(1, 2)])


class EventLog(Watcher):
    """Keeps every event, in the order of arrival."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.events: list[dict[str, Any]] = []
        known = self.state.event
        self.state.event = lambda event: (self.events.append(event), known(event))

    def of(self, id: str) -> list[str]:
        return [event["type"] for event in list(self.events) if event.get("uuid") == id]


@pytest.fixture
def watcher(celery_setup: CeleryTestSetup) -> Iterator[EventLog]:
    with EventLog(celery_setup.app) as made:
        yield made


def test_each_message_is_a_task_and_one_that_fails_is_retried_by_celery(
    watcher: EventLog, engine: Engine, outbox: Outbox, rows: Rows, stream: Stream
) -> None:
    with Session(engine) as session, session.begin():
        plain = [str(outbox.publish(session, "order.created", {"n": n})) for n in range(COUNT)]
        keyed = [str(outbox.publish(session, "order.paid", {"n": n}, key="order:42")) for n in range(5)]
        stubborn = str(outbox.publish(session, "order.stubborn", {"fail": 2}))
    once = ["task-received", "task-started", "task-succeeded"]
    for id in (*plain, *keyed):
        watcher.task(id, "SUCCESS")
        assert watcher.of(id) == once
    assert watcher.task(stubborn, "SUCCESS").retries == 2
    # The worker may receive the retry before it tells of the failure that led to it.
    told = {"task-received": 3, "task-started": 3, "task-retried": 2, "task-succeeded": 1}
    assert Counter(watcher.of(stubborn)) == told

    tasks = [watcher.state.tasks[id] for id in (*plain, *keyed, stubborn)]
    assert {task.name for task in tasks} == {PUBLISH_TASK}
    assert BUNDLE_TASK not in {task.name for task in watcher.state.tasks.values()}
    eventually(lambda: not rows.pending())
    assert Counter(stream.ids()) == Counter([*plain, *keyed, stubborn])
    assert [id for id in stream.ids() if id in keyed] == keyed


def test_each_lease_has_one_message(celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, rows: Rows) -> None:
    with Session(engine) as session, session.begin():
        ids = {str(outbox.publish(session, "order.slow", {"nap": 2})) for _ in range(6)}

    def leased() -> list[Any]:
        return [row for row in rows.hot() if str(row.id) in ids and row.lease is not None]

    found = eventually(lambda: len(seen := leased()) == len(ids) and seen)
    of_lease: dict[object, list[str]] = defaultdict(list)
    for row in found:
        of_lease[row.lease].append(str(row.id))
        assert row.locked_until is not None
    assert all(len(messages) == 1 for messages in of_lease.values())
    eventually(lambda: not rows.pending())
