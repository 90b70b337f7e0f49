"""Flower lists the messages of bundles one by one, to those who have its password; and what people see is there."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.names import PUBLISH_TASK
from outbox_tasks.local.commands import CELERY, FLOWER_READY, flower_argv, flower_env
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.acceptance.browser import CHROMIUM, Browser, browser
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

    eventually(lambda: published(1) and tasks(flower))  # what was sent before it listens, it does not see
    ids = published(40)
    eventually(lambda: {tasks(flower).get(id, {}).get("state") for id in ids} == {"SUCCESS"})
    listed = tasks(flower)
    for id in ids:
        assert listed[id]["name"] == PUBLISH_TASK
        assert "order.created" in listed[id]["args"]
        assert "orders" in listed[id]["args"]
        assert listed[id]["runtime"] is not None
    assert {task["name"] for task in listed.values()} <= {PUBLISH_TASK, "outbox_tasks.claim"}


@pytest.mark.parametrize("login", [None, "outbox:wrong"])
def test_flower_refuses_a_wrong_password(flower: str, login: str | None) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        tasks(flower, login)
    assert refusal.value.code == 401
    refusal.value.close()


def tasks(flower: str, login: str | None = f"outbox:{PASSWORD}") -> dict[str, dict[str, Any]]:
    """What Flower's API lists, by task id."""
    request = urllib.request.Request(f"{flower}/api/tasks")
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, dict[str, Any]] = json.load(answer)
    return found


@pytest.fixture(scope="module")
def page(flower: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


def found(page: Browser, search: str) -> dict[str, dict[str, str]]:
    """The rows that people see when they type this into the search of the page of tasks, by message id."""
    page.run(f"void $('#tasks-table').DataTable().page.len(100).search({search!r}).draw()")
    return {row["UUID"]: row for row in page.table("#tasks-table") if "State" in row}


def test_people_see_each_message_with_its_type_and_destination(
    page: Browser, flower: str, celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox
) -> None:
    """A row each: those that are sent, that wait for their next attempt, with its time, and that are dead."""

    def publish(event_type: str, count: int, to: str, **told: Any) -> list[str]:
        with Session(engine) as session, session.begin():
            return [str(outbox.publish(session, event_type, told, to=to)) for _ in range(count)]

    eventually(lambda: publish("order.early", 1, "orders") and tasks(flower))
    sent = publish("order.created", 4, "orders")
    [waiting] = publish("order.delayed", 1, "told", fail=1, retry_after=50)  # so that it still waits when it is seen
    [dead] = publish("order.refused", 1, "told", refuse="not_wanted")
    eventually(lambda: {tasks(flower).get(id, {}).get("state") for id in (*sent, dead)} == {"SUCCESS", "FAILURE"}, 60)
    eventually(lambda: tasks(flower).get(waiting, {}).get("eta"), 60)

    page.log_in("outbox", PASSWORD)
    page.open(f"{flower}/tasks")
    rows = eventually(lambda: (rows := found(page, "args:order.created")).keys() >= set(sent) and rows)
    for id in sent:
        assert (rows[id]["Name"], rows[id]["State"], rows[id]["ETA"]) == (PUBLISH_TASK, "SUCCESS", "")
        assert "orders" in rows[id]["args"]
    row = eventually(lambda: found(page, "args:order.delayed").get(waiting))
    assert row["State"] in ("RETRY", "RECEIVED")  # received again, to wait; Flower may hear of the retry a moment later
    assert row["Retries"] == "1"
    assert datetime.fromisoformat(row["ETA"]).astimezone(UTC) > datetime.now(UTC)
    row = eventually(lambda: found(page, "state:FAILURE args:told").get(dead))
    assert "order.refused" in row["args"]
    page.open(f"{flower}/task/{dead}")
    eventually(lambda: "not_wanted" in page.text())


def test_people_without_the_password_see_nothing(page: Browser, flower: str) -> None:
    page.log_out()
    page.call("Page.navigate", url=f"{flower}/tasks")
    eventually(lambda: page.run("document.readyState") == "complete")
    assert PUBLISH_TASK not in page.text()


def test_it_is_on_loopback_only(flower: str) -> None:
    port = int(flower.rpartition(":")[2])
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
