"""An application's own workers and beat do the relay's work beside theirs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

WORKERS = [
    ["-Q", "outbox.claim,outbox.maintain", "-P", "solo", "-n", "claim@%h"],
    ["-Q", "outbox.publish,outbox.drain", "-c", "2", "-n", "publish@%h"],
    ["-Q", "shop,media", "-P", "solo", "-n", "shop@%h"],
]


@pytest.fixture(scope="module")
def destinations(destinations: dict[str, Any]) -> dict[str, Any]:
    """And tasks of the application, through its own broker."""
    return {**destinations, "shop": {"url": "celery://?task=shop.on_event&queue=shop"}}


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay, broker_url: str) -> Iterator[CeleryWorkerCluster]:
    """At the end the workers must stop cleanly."""
    # Its broker is in no setting of ours; and Celery lets no worker of root take pickles, but for C_FORCE_ROOT.
    env = ["env", f"SHOP_BROKER_URL={broker_url}", "C_FORCE_ROOT=1"]
    celery = [*env, sys.executable, "-m", "celery", "-A", "tests.acceptance.installed_app"]
    started = [
        relay.worker([*celery, "worker", "-l", "DEBUG", "--without-mingle", *options], broker_url=None)
        for options in WORKERS
    ]
    relay.beat([*celery, "beat", "-l", "DEBUG"], broker_url=None)
    relay.ready()
    yield CeleryWorkerCluster(*started)
    for worker in started:
        worker.kill("SIGTERM")
    for worker in started:
        assert worker.child.wait(60) == 0
        assert "Traceback" not in worker.logs()


@pytest.fixture
def publish(celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox) -> Any:
    """Publishes one message in a transaction of its own; returns its id."""

    def commit(to: str, payload: Any) -> str:
        with Session(engine) as session, session.begin():
            return str(outbox.publish(session, "order.created", payload, to=to))

    return commit


def test_a_commit_wakes_the_claim_through_the_application_s_broker(
    celery_setup: CeleryTestSetup, relay: Relay, broker_url: str, engine: Engine, stream: Stream
) -> None:
    """Beat has its own claims, and says which; what the workers receive beyond those came from the commits."""
    app = Celery("client", broker=broker_url, set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "shop:"}
    outbox = Outbox(relay.settings.replace(broker_url=None), celery=app)

    def claims() -> int:
        beaten = re.findall(r"outbox_tasks\.claim sent\. id->(\S+)", relay.nodes[-1].logs())
        received = re.findall(r"Task outbox_tasks\.claim\[(\S+)\] received", said(celery_setup))
        return len(set(received) - set(beaten))

    before = claims()
    for _ in range(5):
        with Session(engine) as session, session.begin():
            id = str(outbox.publish(session, "order.created", {}, to="orders"))
        eventually(lambda id=id: id in stream.ids())
    eventually(lambda: claims() > before + 1)  # beat may say so a moment after a worker
    assert "; destinations: orders, shop, told" in said(celery_setup)
    app.close()


def test_a_failure_that_passes_is_retried_by_celery_and_one_for_good_is_a_dead_letter_and_an_alert(
    celery_setup: CeleryTestSetup, publish: Any, rows: Rows, broker_url: str
) -> None:
    """The application's Task class would retry both. No result is kept."""
    id, dead = publish("told", {"fail": 2}), publish("told", {"refuse": "never"})
    eventually(lambda: (rows.state(id), rows.state(dead)) == ("sent", "dead"))
    [row] = [row for row in rows.shown() if str(row.id) == id]
    assert (row.attempts, row.last_error_code) == (3, "told")
    assert len(re.findall(rf"outbox_tasks\.publish\[{id}\] retry: Retry in [12]", said(celery_setup))) == 2
    ours = re.compile(rb"outbox_tasks|" + id.encode() + b"|" + dead.encode())
    with redis.Redis.from_url(broker_url) as client:
        results = eventually(lambda: [client.get(key) for key in client.keys("*celery-task-meta-*")])
    assert not [result for result in results if result and ours.search(result)]
    eventually(lambda: f"[{dead}] raised expected: DeadLetter" in said(celery_setup))
    assert (rows.one(dead).attempts, rows.one(dead).last_error_code) == (1, "never")
    eventually(lambda: "warning: told: " in said(celery_setup), 60)


def test_a_message_runs_a_task_of_the_application_and_its_own_tasks_still_run(publish: Any, broker_url: str) -> None:
    id = publish("shop", {"id": 42})
    [call] = eventually(lambda: [call for call in calls(broker_url, "events") if call["id"] == id])
    assert call["argument"] == {"id": 42}
    before = len(calls(broker_url, "ticks"))
    tick = eventually(lambda: calls(broker_url, "ticks")[before:])[-1]
    assert (tick["routing_key"], tick["late"], tick["frozen"]) == ("media.any", True, False)


def calls(broker_url: str, name: str) -> list[dict[str, Any]]:
    """How the application's tasks were called so far."""
    with redis.Redis.from_url(broker_url) as client:
        return [json.loads(call) for call in client.lrange(name, 0, -1)]


def said(setup: CeleryTestSetup) -> str:
    """What all the workers wrote."""
    return " ".join(worker.logs() for worker in setup.worker_cluster)
