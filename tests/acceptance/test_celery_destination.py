"""A message to `celery://` runs a task of a stock Celery worker. The relay is one solo worker here, without beat."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from tests.acceptance.conftest import cluster, settled
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, eventually

CELERY = [sys.executable, "-m", "celery"]

COUNT = 350
"""More than three batches of a drain."""


@pytest.fixture(scope="module")
def destinations() -> dict[str, Any]:
    return {"shop": {"url": "celery://?task=shop.on_event&queue=shop"}, "by_type": {"url": "celery://?queue=shop"}}


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    whole = relay.worker([*CELERY, "-A", "outbox_tasks", "worker", "-l", "INFO", "-P", "solo"])
    stock = [*CELERY, "-A", "tests.acceptance.stock_app", "worker", "-l", "INFO", "-P", "solo"]
    return cluster(relay, [whole, relay.worker([*stock, "-Q", "shop", "-n", "shop@%h"])])


@pytest.mark.parametrize(("to", "event_type"), [("shop", "order.created"), ("by_type", "shop.on_event")])
def test_a_stock_worker_runs_the_task_under_the_messages_id_with_its_payload_and_headers(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, rows: Rows, to: str, event_type: str
) -> None:
    with Session(engine) as session, session.begin():
        id = outbox.publish(
            session, event_type, {"id": 42, "name": "Zoë"}, to=to, key="order:42", headers={"tenant": "t1"}
        )
    [call] = eventually(lambda: [c for c in calls(celery_setup) if c["id"] == str(id)])
    assert (call["args"], call["kwargs"]) == ([{"id": 42, "name": "Zoë"}], {})
    expected = {"ce_id": str(id), "ce_type": event_type, "ce_partitionkey": "order:42", "tenant": "t1"}
    assert expected.items() <= call["headers"].items()
    eventually(lambda: rows.state(id) == "sent")


def test_each_of_many_messages_runs_its_task_once(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, rows: Rows
) -> None:
    with Session(engine) as session, session.begin():
        ids = {str(outbox.publish(session, "order.created", n, to="shop")) for n in range(COUNT)}
    settled(rows)

    def made() -> list[str]:
        return [call["id"] for call in calls(celery_setup) if call["id"] in ids]

    # The list is long: who reads all of it again and again takes the time from whom it waits for.
    client = celery_setup.broker.container.client
    eventually(lambda: client.llen("shop.calls") >= COUNT and len(made()) >= COUNT, 60)
    assert sorted(made()) == sorted(ids)


def test_a_payload_that_is_not_json_is_a_dead_letter(
    celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox, rows: Rows
) -> None:
    with Session(engine) as session, session.begin():
        id = outbox.publish(session, "order.created", b"\xff", to="shop")
    eventually(lambda: rows.state(id) == "dead")
    assert rows.one(id).last_error_code == "not_json"


def calls(setup: CeleryTestSetup) -> list[dict[str, Any]]:
    """How the stock worker's task was called so far."""
    return [json.loads(call) for call in setup.broker.container.client.lrange("shop.calls", 0, -1)]
