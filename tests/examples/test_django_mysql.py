"""Django on MySQL: rows, events and tasks of one `atomic` block are committed together, or none is."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from celery import Celery
from sqlalchemy import Engine, text

from outbox_tasks.local.processes import Child
from tests.conftest import eventually
from tests.examples.conftest import PYTHON, Project
from tests.feeds.places import mysql_engine

MANAGE = (PYTHON[0], "manage.py")


@pytest.fixture(scope="module")
def example() -> str:
    return "django_mysql"


@pytest.fixture(scope="module")
def database(mariadb: str) -> Iterator[Engine]:
    """The project's own."""
    with mysql_engine(mariadb) as engine:
        yield engine


@pytest.fixture(scope="module")
def worker(project: Project, database: Engine) -> Child:
    """The project's worker, which is the relay too."""
    url = database.url.set(drivername="mariadb").render_as_string(hide_password=False)
    project.env["OUTBOX_FEEDS"] = json.dumps({"shop": {"url": url}})
    project.run(*MANAGE, "migrate")
    return project.worker("config", "-B")


@pytest.fixture(scope="module")
def site(project: Project, worker: Child) -> httpx.Client:
    return project.web(*MANAGE, "runserver", "--noreload", "{port}")


def place(site: httpx.Client, email: str, cents: int) -> httpx.Response:
    return site.post("/orders/", json={"email": email, "cents": cents})


def test_the_event_and_the_task_of_a_committed_order_take_effect(site: httpx.Client, project: Project) -> None:
    [before] = project.counts("outbox_all")
    answer = place(site, "ada@example.org", 1250)
    assert answer.status_code == 201
    id = answer.json()["id"]
    shown = {"cents": 1250, "booked": True, "mails": [f"To ada@example.org: thank you for order {id}"]}
    eventually(lambda: site.get(f"/orders/{id}/").json() == shown)
    query = "SELECT event_type, destination, state FROM outbox_all ORDER BY seq"
    sent = [("order.placed", "mail", "sent"), ("shop.tasks.book_order", "tasks", "sent")]
    eventually(lambda: project.rows(query)[before:] == sent)


def test_an_order_that_fails_after_both_leaves_nothing(site: httpx.Client, project: Project, database: Engine) -> None:
    [before] = project.counts("outbox_all")
    assert place(site, "grace@example.org", 10_001).status_code == 409
    id = place(site, "grace@example.org", 1).json()["id"]  # copied after anything that was left
    eventually(lambda: site.get(f"/orders/{id}/").json()["booked"] and site.get(f"/orders/{id}/").json()["mails"])
    assert project.counts("outbox_all") == [before + 2]
    with database.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM shop_order WHERE cents = 10001")).scalar()
    assert found == 0


def test_an_event_that_is_delivered_twice_takes_effect_once(
    site: httpx.Client, project: Project, worker: Child
) -> None:
    id = place(site, "barbara@example.org", 1).json()["id"]
    eventually(lambda: site.get(f"/orders/{id}/").json()["mails"])
    [[message]] = project.rows(f"SELECT id FROM outbox_all WHERE key = 'order:{id}'")
    with Celery(broker=project.env["OUTBOX_BROKER_URL"], set_as_current=False) as again:
        again.send_task("shop.tasks.write_confirmation", [{"order_id": id}], task_id=str(message))
    eventually(lambda: f"mail has taken message {message} before" in worker.tail())
    assert len(site.get(f"/orders/{id}/").json()["mails"]) == 1
