"""With task events on, whoever watches sees each single as a publish task of its own, a drain as a task that says what
it did, and no claim that did nothing. Flower shows that to those who have its password."""

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
from outbox_tasks.broker.names import CLAIM_TASK, DRAIN_TASK, PUBLISH_TASK
from outbox_tasks.local.commands import CELERY, FLOWER_READY, flower_argv, flower_env
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.settings import CLAIM_QUEUE
from outbox_tasks.worker.requests import NOTHING_CLAIMED
from tests.acceptance.conftest import cluster
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


ORDERS: dict[str, dict[str, Any]] = {
    "created": {}, "stubborn": {"fail": 2}, "hopeless": {"fail": 99}, "refused": {"refuse": "429: can't"},
    "delayed": {"fail": 1, "retry_after": 50},  # so that it still waits when it is seen
}  # fmt: skip
"""What a message tells its destination to do, by the last word of its type."""


def test_people_see_each_message_with_its_type_and_destination(
    page: Browser, flower: str, celery_setup: CeleryTestSetup, engine: Engine, outbox: Outbox
) -> None:
    """A row each: those that are sent, that wait for their next attempt, with its time, and that are dead."""

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
        assert task["name"] == PUBLISH_TASK
        assert f"order.{word}" in task["args"]
        assert "told" in task["args"]
        assert (task["received"] is None, task["started"] is None) == (False, False)
    assert "429: can't" in seen("refused")["exception"]
    eventually(lambda: seen("delayed").get("eta"), 60)

    def results(name: str) -> list[str]:
        return [task["result"] for task in tasks(flower).values() if (task["name"], task["state"]) == (name, "SUCCESS")]

    eventually(lambda: any("sent " in result for result in results(DRAIN_TASK)))
    assert not drained & tasks(flower).keys()
    assert repr(NOTHING_CLAIMED) not in results(CLAIM_TASK)

    page.goto(f"{flower}/tasks")
    page.wait_for_function("() => window.$ && $.fn.dataTable && $.fn.dataTable.isDataTable('#tasks-table')")
    row = eventually(lambda: found(page, "args:order.created").get(ids["created"]))
    assert (row["Name"], row["State"], row["ETA"], "told" in row["args"]) == (PUBLISH_TASK, "SUCCESS", "", True)
    row = eventually(lambda: found(page, "args:order.delayed").get(ids["delayed"]))
    assert row["State"] in ("RETRY", "RECEIVED")  # received again, to wait; Flower may hear of the retry a moment later
    assert row["Retries"] == "1"
    assert datetime.fromisoformat(row["ETA"]).astimezone(UTC) > datetime.now(UTC)
    row = eventually(lambda: found(page, "state:FAILURE args:told").get(ids["refused"]))
    assert "order.refused" in row["args"]
    page.goto(f"{flower}/task/{ids['refused']}")
    page.get_by_text("429: can't").first.wait_for()
