"""Flower lists the messages of bundles one by one, to those who have its password."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker import PUBLISH_TASK
from outbox_tasks.local.commands import CELERY, FLOWER_READY, flower_argv, flower_env
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.acceptance.conftest import cluster
from tests.acceptance.nodes import Relay
from tests.conftest import eventually

PASSWORD = "a secret"


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    return cluster(relay, [relay.worker([*CELERY, "worker", "-l", "INFO", "-P", "solo", "-E"])])


@pytest.fixture(scope="module")
def flower(relay: Relay) -> Iterator[str]:
    """The address of Flower, watching the relay."""
    port = free_port()
    env = {**relay.env(), **flower_env(PASSWORD)}
    with Child.start("flower", flower_argv(port), env=env) as child:
        child.wait_for(FLOWER_READY, 60)
        child.wait_for("Connected to", 60)
        yield f"http://{LOOPBACK}:{port}"


def test_flower_lists_every_message(flower: str, celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox) -> None:
    def published(count: int) -> set[str]:
        with Session(engine) as session, session.begin():
            return {str(outbox.publish(session, "order.created", {}, to="orders")) for _ in range(count)}

    eventually(lambda: published(1) and tasks(flower), 30)  # what was sent before it listens, it does not see
    ids = published(40)
    eventually(lambda: {tasks(flower).get(id, {}).get("state") for id in ids} == {"SUCCESS"}, 30)
    listed = tasks(flower)
    for id in ids:
        assert listed[id]["name"] == PUBLISH_TASK
        assert "order.created" in listed[id]["args"]
        assert "orders" in listed[id]["args"]
        assert listed[id]["runtime"] is not None
    assert {task["name"] for task in listed.values()} <= {PUBLISH_TASK, "outbox_tasks.claim"}


@pytest.mark.parametrize("login", [None, "outbox:wrong"])
def test_flower_refuses_who_has_not_the_password(flower: str, login: str | None) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        tasks(flower, login)
    assert refusal.value.code == 401
    refusal.value.close()


def tasks(flower: str, login: str | None = f"outbox:{PASSWORD}") -> dict[str, dict[str, Any]]:
    """What Flower's API lists, by task id."""
    request = urllib.request.Request(f"{flower}/api/tasks")
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, dict[str, Any]] = json.load(answer)
    return found
