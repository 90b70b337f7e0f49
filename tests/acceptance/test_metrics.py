"""What real workers count in their pools, as a scraper gets it, through kills and to the end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Message, Outbox
from outbox_tasks.local.ports import free_port
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay, Worker
from tests.conftest import eventually
from tests.exposed import described, documented, samples

# One for all: each makes a context for TLS, which takes longer than many requests.
client = httpx.Client(timeout=60, headers={"connection": "close"})

UNREACHABLE = "redis+stream://127.0.0.1:1/0/nobody"


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return {"breaker_failures": 1, "breaker_pause": 0.2, "queue_lease": 6, "send_timeout": 1,
            "statement_timeout": 0.5}  # fmt: skip


@pytest.fixture(scope="module")
def destinations(destinations: dict[str, Any]) -> dict[str, Any]:
    return {**destinations, "away": {"url": UNREACHABLE}}


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the workers make their directories."""
    path = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(path))
        yield path


@dataclass(frozen=True)
class Measured:
    """A worker with a monitor."""

    worker: Worker
    port: int

    def exposed(self) -> bytes:
        answer = client.get(f"http://127.0.0.1:{self.port}/metrics")
        assert answer.is_success, answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return answer.content

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples with these labels."""
        found = samples(self.exposed()).get(name, [])
        return sum(value for have, value in found if labels.items() <= have.items())


@pytest.fixture(scope="module")
def claiming(relay: Relay, temporary: Path) -> Measured:
    port = free_port()
    return Measured(relay.claim(monitor_port=port), port)


@pytest.fixture(scope="module")
def publishing(relay: Relay, temporary: Path) -> Measured:
    port = free_port()
    return Measured(relay.publish(1, 2, monitor_port=port), port)


@pytest.fixture(scope="module")
def celery_worker_cluster(
    relay: Relay, claiming: Measured, publishing: Measured, temporary: Path
) -> Iterator[CeleryWorkerCluster]:
    """When the workers have ended, their directories are gone."""
    relay.beat()
    workers = [claiming.worker, publishing.worker]
    yield cluster(relay, workers)
    assert len(list(temporary.glob("outbox-metrics-*"))) == 2
    for worker in workers:
        worker.container.child.stop()
    assert not list(temporary.glob("*outbox-metrics-*"))


OF_TASKS = {"outbox_task_seconds", "outbox_task_wait_seconds"}
"""An application's worker counts these, if its app has the relay."""


def test_every_documented_metric_is_counted_and_survives_a_killed_process(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, claiming: Measured, publishing: Measured
) -> None:
    with Session(engine) as session, session.begin():
        outbox.publish_many(session, [Message("order.created", n, to="orders") for n in range(500)])
        outbox.publish(session, "a", {"refuse": "refused"}, to="told", key="k")
        outbox.publish(session, "a", {}, to="away")

    def sent() -> float:
        return publishing.value("outbox_messages_total", destination="orders", outcome="sent")

    eventually(lambda: sent() == 500)
    eventually(lambda: publishing.value("outbox_breaker_opened_total", destination="away"))
    eventually(lambda: publishing.value("outbox_keys_blocked_total", destination="told"))
    of_the_relay = {name: facts for name, facts in documented("What workers count").items() if name not in OF_TASKS}
    assert described(claiming.exposed()) | described(publishing.exposed()) == of_the_relay
    assert publishing.value("outbox_latency_seconds_count", destination="orders") == 500
    assert publishing.value("outbox_errors_total", destination="told", code="refused") == 1
    assert claiming.value("outbox_claimed_singles_total") >= 2
    assert claiming.value("outbox_claimed_drains_total") >= 1

    # All of the pool is killed: what it has counted stays.
    killed = publishing.worker.container.pool()
    for process in killed:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(killed, 60)
    assert sent() == 500
    with Session(engine) as session, session.begin():
        outbox.publish_many(session, [Message("order.created", n, to="orders") for n in range(100)])
    eventually(lambda: sent() == 600, 60)


def test_a_message_whose_worker_was_killed_as_it_was_sent_is_counted_with_the_cause(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, claiming: Measured
) -> None:
    with Session(engine) as session, session.begin():
        outbox.publish(session, "a", {"die": True}, to="told")
    unsettled = {"destination": "told", "cause": "unsettled"}
    eventually(lambda: claiming.value("outbox_claimed_again_total", **unsettled), 60)
