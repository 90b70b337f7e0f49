"""The SQL example: a trigger publishes whatever changes the table, in the writer's own transaction."""

from __future__ import annotations

import httpx
import psycopg
import pytest

from tests.conftest import eventually
from tests.examples.conftest import PYTHON, Project

LINE = {"product": "chair", "quantity": 1}


@pytest.fixture(scope="module")
def example() -> str:
    return "sql_trigger"


@pytest.fixture(scope="module")
def web(project: Project) -> httpx.Client:
    """The pages, with the consumer and a relay."""
    with psycopg.connect(project.env["OUTBOX_DATABASE_URL"]) as connection:
        connection.execute((project.directory / "schema.sql").read_bytes())
    project.worker("outbox_tasks", "-B")
    project.worker("notifications", "-Q", "notifications", "-n", "notifications@%h")
    return project.web(PYTHON[0], "web.py", "{port}")


def test_whoever_changes_an_order_publishes(web: httpx.Client, project: Project) -> None:
    path = f"/orders/{web.post('/orders', json={'email': 'ada@example.org', 'lines': [LINE]}).json()['id']}"
    created = "ada@example.org: your order is created"
    eventually(lambda: web.get(path).json() == {"status": "created", "notifications": [created]})
    assert web.patch(path, json={"status": "paid"}).status_code == 200
    paid = "ada@example.org: your order is paid"
    eventually(lambda: web.get(path).json() == {"status": "paid", "notifications": [created, paid]})
    # By hand, as in psql.
    with psycopg.connect(project.env["OUTBOX_DATABASE_URL"]) as connection:
        connection.execute("UPDATE orders SET status = 'shipped'")
    shipped = "ada@example.org: your order is shipped"
    eventually(lambda: web.get(path).json()["notifications"] == [created, paid, shipped])


def test_an_order_that_fails_after_the_trigger_published_leaves_nothing(web: httpx.Client, project: Project) -> None:
    before = project.counts("orders", "outbox_all")
    lines = [LINE, {"product": "table", "quantity": 0}]
    answer = web.post("/orders", json={"email": "ada@example.org", "lines": lines})
    assert (answer.status_code, "quantity_check" in answer.json()["error"]) == (409, True)
    assert project.counts("orders", "outbox_all") == before
    id = web.post("/orders", json={"email": "grace@example.org", "lines": [LINE]}).json()["id"]
    before = project.counts("outbox_all")
    assert web.patch(f"/orders/{id}", json={"status": "created"}).status_code == 200
    assert project.counts("outbox_all") == before, "what changes nothing publishes nothing"
