"""FastAPI on SQLite: an order and the row of its feed are committed together, or neither is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Stream, eventually
from tests.examples.conftest import PYTHON, Project


@pytest.fixture(scope="module")
def example() -> str:
    return "fastapi_sqlite"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop") / "shop.db"


@pytest.fixture(scope="module")
def stream(project: Project) -> Iterator[Stream]:
    """Where the messages go; it is emptied with the project's broker."""
    made = Stream(project.env["OUTBOX_BROKER_URL"], "events")
    yield made
    made.client.close()


@pytest.fixture(scope="module")
def shop(project: Project, stream: Stream, database: Path) -> httpx.Client:
    """The shop, with its warehouse and a relay."""
    project.env["OUTBOX_DESTINATIONS"] = json.dumps({"events": {"url": stream.url}})  # as `outbox-tasks up` says it
    project.env["OUTBOX_FEEDS"] = json.dumps({"shop": {"url": f"sqlite:///{database}"}})
    project.env["SHOP_DATABASE"] = str(database)
    project.start("warehouse", PYTHON[0], "consumer.py", ready="open")
    project.worker("outbox_tasks", "-B")
    return project.web(*PYTHON, "uvicorn", "main:app", "--port", "{port}")


def packed(shop: httpx.Client) -> dict[str, Any]:
    """An order that the warehouse has packed."""
    answer = shop.post("/orders", json={"product": "chair", "quantity": 2})
    order: dict[str, Any] = answer.json()
    assert (answer.status_code, order["status"]) == (201, "received")
    eventually(lambda: shop.get(f"/orders/{order['id']}").json()["status"] == "packed")
    return order


def count(database: Path, table: str) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_an_order_is_packed_once_its_message_has_arrived(shop: httpx.Client, project: Project, database: Path) -> None:
    order = packed(shop)
    query = f"SELECT state FROM outbox_all WHERE key = 'order:{order['id']}'"
    eventually(lambda: project.rows(query) == [("sent",)])
    eventually(lambda: count(database, "outbox_feed") == 0)


def test_an_order_that_is_refused_after_it_published_leaves_nothing(
    shop: httpx.Client, project: Project, database: Path
) -> None:
    packed(shop)
    before = count(database, "orders"), project.counts("outbox_all")
    answer = shop.post("/orders", json={"product": "table", "quantity": 101})
    assert (answer.status_code, answer.json()) == (409, {"detail": "there are not 101 of table left"})
    packed(shop)  # copied after anything that was left
    assert (count(database, "orders"), project.counts("outbox_all")) == (before[0] + 1, [before[1][0] + 1])


def test_a_message_that_is_delivered_twice_is_packed_once(shop: httpx.Client, stream: Stream) -> None:
    order = packed(shop)
    stream.client.xadd(stream.name, stream.entries()[-1])  # type: ignore[arg-type]
    packed(shop)  # taken after the repetition
    assert shop.get(f"/orders/{order['id']}").json()["status"] == "packed"
