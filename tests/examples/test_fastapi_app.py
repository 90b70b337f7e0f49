"""The FastAPI example: an order and its message are committed together, or neither is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import Stream, eventually
from tests.examples.conftest import PYTHON, STAFF_PASSWORD, Project, paused_on_the_page


@pytest.fixture(scope="module")
def example() -> str:
    return "fastapi_app"


@pytest.fixture(scope="module")
def stream(project: Project) -> Iterator[Stream]:
    """Where the messages go; it is emptied with the project's broker."""
    made = Stream(project.env["OUTBOX_BROKER_URL"], "events")
    yield made
    made.client.close()


@pytest.fixture(scope="module")
def shop(project: Project, stream: Stream) -> httpx.Client:
    """The shop, with its warehouse and a relay."""
    project.env["OUTBOX_DESTINATIONS"] = json.dumps({"events": {"url": stream.url}})  # as `outbox-tasks up` says it
    project.worker("outbox_tasks", "-B")
    project.start("warehouse", PYTHON[0], "consumer.py", ready="open")
    return project.web(*PYTHON, "uvicorn", "main:app", "--port", "{port}", STAFF_PASSWORD=STAFF_PASSWORD)


def packed(shop: httpx.Client) -> dict[str, Any]:
    """An order that the warehouse has packed."""
    answer = shop.post("/orders", json={"product": "chair", "quantity": 2})
    order: dict[str, Any] = answer.json()
    assert (answer.status_code, order["status"]) == (201, "received")
    eventually(lambda: shop.get(f"/orders/{order['id']}").json()["status"] == "packed")
    return order


def test_an_order_is_packed_once_its_message_has_arrived(shop: httpx.Client, project: Project) -> None:
    order = packed(shop)
    query = f"SELECT state FROM outbox_all WHERE key = 'order:{order['id']}'"
    eventually(lambda: project.rows(query) == [("sent",)])


def test_an_order_that_is_refused_after_it_published_leaves_nothing(shop: httpx.Client, project: Project) -> None:
    before = project.counts("orders", "outbox_all")
    answer = shop.post("/orders", json={"product": "table", "quantity": 4})
    assert (answer.status_code, answer.json()) == (409, {"detail": "there are not 4 of table left"})
    assert project.counts("orders", "outbox_all") == before


def test_a_message_that_is_delivered_twice_is_one_parcel(shop: httpx.Client, project: Project, stream: Stream) -> None:
    packed(shop)
    stream.client.xadd(stream.name, stream.entries()[-1])  # type: ignore[arg-type]
    packed(shop)  # taken after the repetition
    assert len(stream) == project.counts("parcels")[0] + 1


def test_the_page_is_for_staff_who_have_signed_in(shop: httpx.Client) -> None:
    assert shop.get("/outbox/").status_code == 403
    assert shop.post("/login", json={"name": "anna", "password": "wrong"}).status_code == 401
    assert shop.post("/login", json={"name": "anna", "password": STAFF_PASSWORD}).status_code == 204
    paused_on_the_page(shop, "events", "anna")
