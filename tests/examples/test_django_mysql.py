"""Django on MySQL: rows, events and tasks of one `atomic` block are committed together, or none is."""

from __future__ import annotations

import json

import httpx
import pytest
from sqlalchemy import text

from tests.conftest import eventually
from tests.examples.conftest import PYTHON, Project
from tests.feeds.places import mysql_engine

MANAGE = (PYTHON[0], "manage.py")


@pytest.fixture(scope="module")
def example() -> str:
    return "django_mysql"


def test_the_event_and_the_task_of_a_committed_order_take_effect_and_a_failed_one_leaves_nothing(
    project: Project, mariadb: str
) -> None:
    def place(email: str, cents: int) -> httpx.Response:
        return site.post("/orders/", json={"email": email, "cents": cents})

    with mysql_engine(mariadb) as database:
        url = database.url.set(drivername="mariadb").render_as_string(hide_password=False)
        project.env["OUTBOX_FEEDS"] = json.dumps({"shop": {"url": url}})
        project.run(*MANAGE, "migrate")
        project.worker("config", "-B")  # the relay, too
        site = project.web(*MANAGE, "runserver", "--noreload", "{port}")
        assert place("grace@example.org", 10_001).status_code == 409
        answer = place("ada@example.org", 1250)
        assert answer.status_code == 201
        id = answer.json()["id"]
        shown = {"cents": 1250, "booked": True, "mails": [f"To ada@example.org: thank you for order {id}"]}
        eventually(lambda: site.get(f"/orders/{id}/").json() == shown)
        query = "SELECT event_type, destination, state FROM outbox_all ORDER BY seq"
        sent = [("order.placed", "mail", "sent"), ("shop.tasks.book_order", "tasks", "sent")]
        eventually(lambda: project.rows(query) == sent)
        with database.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM shop_order WHERE cents = 10001")).scalar() == 0
        assert not project.stop()
