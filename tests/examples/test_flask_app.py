"""The Flask example: unchanged `delay` calls stand and fall with the request's transaction."""

from __future__ import annotations

import re

import httpx
import pytest

from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from tests.conftest import eventually
from tests.examples.conftest import PYTHON, STAFF_PASSWORD, Project, paused_on_the_page

FLASK = (*PYTHON, "flask", "--app", "shop")


@pytest.fixture(scope="module")
def example() -> str:
    return "flask_app"


@pytest.fixture(scope="module")
def worker(project: Project) -> Child:
    """The shop's worker, which is the relay too."""
    project.run(*FLASK, "create-tables")
    return project.worker("shop.worker", "-B")


@pytest.fixture(scope="module")
def shop(project: Project, worker: Child) -> httpx.Client:
    return project.web(*FLASK, "run", "--port", "{port}", FLASK_STAFF_PASSWORD=STAFF_PASSWORD)


def order(shop: httpx.Client, customer: str, cents: int = 1250) -> httpx.Response:
    return shop.post("/orders", json={"customer": customer, "cents": cents})


def test_what_was_called_in_a_transaction_that_committed_runs(shop: httpx.Client, project: Project) -> None:
    [before] = project.counts("outbox_all")
    answer = order(shop, "Ada")
    assert answer.status_code == 201
    id = answer.json()["id"]
    eventually(lambda: shop.get(f"/orders/{id}").json()["receipt"] == "Ada paid 12.50")
    query = "SELECT event_type, state FROM outbox_all ORDER BY seq"
    eventually(lambda: project.rows(query)[before:] == [("shop.tasks.send_receipt", "sent")])


def test_what_was_called_in_one_that_rolled_back_does_not_run_unless_sent_directly(
    shop: httpx.Client, project: Project, worker: Child
) -> None:
    def receipts() -> int:
        return len(re.findall(r"Task shop\.tasks\.send_receipt\S+ received", worker.tail(500)))

    before = receipts(), project.counts("orders", "outbox_all")
    assert order(shop, "Grace", 100_001).status_code == 409
    eventually(lambda: shop.get("/refusals").json() == {"customers": ["Grace"]})
    assert (receipts(), project.counts("orders", "outbox_all")) == before


def test_a_broker_that_is_down_fails_no_request(shop: httpx.Client, project: Project) -> None:
    # A web process that can't reach it; the relay can, as it could again after an outage.
    down = f"redis://{LOOPBACK}:{free_port()}/0"
    cut_off = project.web(*FLASK, "run", "--port", "{port}", OUTBOX_BROKER_URL=down)
    answer = order(cut_off, "Barbara")
    assert answer.status_code == 201
    eventually(lambda: shop.get(f"/orders/{answer.json()['id']}").json()["receipt"] == "Barbara paid 12.50")


def test_the_page_is_for_staff_who_have_signed_in(shop: httpx.Client) -> None:
    assert shop.get("/outbox/").status_code == 403
    assert shop.post("/login", data={"name": "ben", "password": "wrong"}).status_code == 401
    assert shop.post("/login", data={"name": "ben", "password": STAFF_PASSWORD}).headers["location"] == "/outbox/"
    paused_on_the_page(shop, "tasks", "ben")
