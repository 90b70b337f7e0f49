"""FastAPI on SQLite: an order and the row of its feed are committed together, or neither is."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Stream, eventually
from tests.examples.conftest import PYTHON, Project


@pytest.fixture(scope="module")
def example() -> str:
    return "fastapi_sqlite"


def test_an_order_is_packed_once_its_message_has_arrived_and_a_refused_one_leaves_nothing(
    project: Project, tmp_path: Path
) -> None:
    stream, database = Stream(project.env["OUTBOX_BROKER_URL"], "events"), tmp_path / "shop.db"
    project.env["OUTBOX_DESTINATIONS"] = json.dumps({"events": {"url": stream.url}})  # as `outbox-tasks up` says it
    project.env["OUTBOX_FEEDS"] = json.dumps({"shop": {"url": f"sqlite:///{database}"}})
    project.env["SHOP_DATABASE"] = str(database)
    project.start("warehouse", PYTHON[0], "consumer.py", ready="open")
    project.worker("outbox_tasks", "-B")
    shop = project.web(*PYTHON, "uvicorn", "main:app", "--port", "{port}")
    answer = shop.post("/orders", json={"product": "table", "quantity": 101})
    assert (answer.status_code, answer.json()) == (409, {"detail": "there are not 101 of table left"})
    order = shop.post("/orders", json={"product": "chair", "quantity": 2}).json()
    assert order["status"] == "received"
    eventually(lambda: shop.get(f"/orders/{order['id']}").json()["status"] == "packed")
    eventually(lambda: project.rows("SELECT key, state FROM outbox_all") == [(f"order:{order['id']}", "sent")])
    with closing(sqlite3.connect(database)) as connection:
        counts = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_feed)"
        eventually(lambda: connection.execute(counts).fetchone() == (1, 0))
    stream.client.close()
