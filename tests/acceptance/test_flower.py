"""With task events on, whoever watches sees each single as a publish task of its own, a drain as a task that says what
it did, and no claim that did nothing. Flower shows that to those who have its password."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.names import CLAIM_TASK, DRAIN_TASK, PUBLISH_TASK
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.local.relay import CELERY, FLOWER_READY, flower_argv, flower_env
from outbox_tasks.settings import CLAIM_QUEUE
from outbox_tasks.worker.requests import NOTHING_CLAIMED
from tests.acceptance.nodes import Relay
from tests.conftest import eventually

PASSWORD = "a secret"


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return {"backoff_base": 0.2}


@pytest.fixture(scope="module")
def destinations(destinations: dict[str, Any]) -> dict[str, Any]:
    return {**destinations, "drained": {**destinations["told"], "singles": 0}}


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    worker = relay.worker([*CELERY, "worker", "-l", "INFO", "-P", "solo", "-E"])
    relay.ready()
    return CeleryWorkerCluster(worker)


@pytest.fixture(scope="module")
def flower(relay: Relay, celery_worker_cluster: CeleryWorkerCluster) -> Iterator[str]:
    """The address of Flower, watching the relay."""
    port = free_port()
    env = {**relay.env(), **flower_env(PASSWORD)}
    with Child.start("flower", flower_argv(port), env=env) as child:
        child.wait_for(FLOWER_READY, 60)
        child.wait_for("Connected to", 60)
        yield f"http://{LOOPBACK}:{port}"


def test_it_is_on_loopback_only_and_refuses_a_wrong_password(flower: str) -> None:
    port = int(flower.rpartition(":")[2])
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port]
    assert {c.laddr.ip for c in listening} == {LOOPBACK}
    for page, login in (("api/tasks", None), ("tasks", ("outbox", "wrong"))):
        assert httpx.get(f"{flower}/{page}", auth=login, timeout=60).status_code == 401


def tasks(flower: str) -> dict[str, dict[str, Any]]:
    """What Flower's API lists, by task id."""
    found: dict[str, dict[str, Any]] = httpx.get(f"{flower}/api/tasks", auth=("outbox", PASSWORD), timeout=60).json()
    return found


ORDERS: dict[str, dict[str, Any]] = {
    "created": {}, "stubborn": {"fail": 2}, "hopeless": {"fail": 99}, "refused": {"refuse": "429: can't"},
}  # fmt: skip
"""What a message tells its destination to do, by the last word of its type."""


def test_each_message_is_listed_with_its_type_and_destination(
    flower: str, celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox
) -> None:
    def publish(word: str, to: str = "told") -> str:
        with Session(engine) as session, session.begin():
            return str(outbox.publish(session, f"order.{word}", ORDERS[word], to=to))

    eventually(lambda: publish("created") and tasks(flower))  # what was sent before it listens, it does not see
    ids = {word: publish(word) for word in ORDERS}
    drained = {publish("created", to="drained") for _ in range(5)}
    for _ in range(5):
        celery_setup.app.send_task(CLAIM_TASK, queue=CLAIM_QUEUE)

    def seen(word: str) -> dict[str, Any]:
        return tasks(flower).get(ids[word], {})

    for word, state, retries in (
        ("created", "SUCCESS", 0), ("stubborn", "SUCCESS", 2), ("hopeless", "FAILURE", 2), ("refused", "FAILURE", 0),
    ):  # fmt: skip
        eventually(lambda: (seen(word).get("state"), seen(word).get("retries")) == (state, retries))  # noqa: B023
        task = seen(word)
        assert (task["name"], f"order.{word}" in task["args"], "told" in task["args"]) == (PUBLISH_TASK, True, True)
    assert "429: can't" in seen("refused")["exception"]

    def results(name: str) -> list[str]:
        return [task["result"] for task in tasks(flower).values() if (task["name"], task["state"]) == (name, "SUCCESS")]

    eventually(lambda: any("sent " in result for result in results(DRAIN_TASK)))
    assert not drained & tasks(flower).keys()
    assert repr(NOTHING_CLAIMED) not in results(CLAIM_TASK)
