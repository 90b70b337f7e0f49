"""Flower lists the messages that travel singly, to those who have its password; and what people see is there."""

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
from playwright.sync_api import Browser, Page
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.broker.names import CLAIM_TASK, PUBLISH_TASK
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


def test_it_is_on_loopback_only_and_refuses_a_wrong_password(flower: str) -> None:
    port = int(flower.rpartition(":")[2])
    listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port]
    assert {c.laddr.ip for c in listening} == {LOOPBACK}
    for page, login in (("api/tasks", None), ("tasks", "outbox:wrong")):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            read(f"{flower}/{page}", login)
        assert refusal.value.code == 401
        refusal.value.close()


def read(url: str, login: str | None = f"outbox:{PASSWORD}") -> bytes:
    request = urllib.request.Request(url)
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def tasks(flower: str) -> dict[str, dict[str, Any]]:
    """What Flower's API lists, by task id."""
    found: dict[str, dict[str, Any]] = json.loads(read(f"{flower}/api/tasks"))
    return found


@pytest.fixture(scope="module")
def page(chromium: Browser, flower: str) -> Page:
    """Of somebody who has the password."""
    made = chromium.new_context(http_credentials={"username": "outbox", "password": PASSWORD}).new_page()
    made.set_default_timeout(60_000)
    return made


TABLE = """search => {
    const table = $('#tasks-table');
    if (!table[0]?.tHead) return [];  // while the page draws it anew
    table.DataTable().page.len(100).search(search).draw();
    const titles = [...table[0].tHead.rows[0].cells].map(cell => cell.textContent.trim());
    return [...table[0].tBodies[0].rows].map(row => Object.fromEntries(
        [...row.cells].map((cell, n) => [titles[n], cell.innerText.trim()])));
}"""


def found(page: Page, search: str) -> dict[str, dict[str, str]]:
    """The rows that people see when they type this into the search of the page of tasks, by message id."""
    return {row["UUID"]: row for row in page.evaluate(TABLE, search) if "State" in row}


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

    assert {task["name"] for task in tasks(flower).values()} <= {PUBLISH_TASK, CLAIM_TASK}

    page.goto(f"{flower}/tasks")
    page.wait_for_function("() => window.$ && $.fn.dataTable && $.fn.dataTable.isDataTable('#tasks-table')")
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
    page.goto(f"{flower}/task/{dead}")
    page.get_by_text("not_wanted").first.wait_for()
