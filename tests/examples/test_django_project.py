"""The Django example: rows, events and tasks of one `atomic` block are committed together, or none is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbox_tasks.local.processes import Child
from tests.conftest import eventually
from tests.examples.conftest import EXAMPLES, PYTHON, Project, paused_on_the_page

MANAGE = (PYTHON[0], "manage.py")
ROOT = EXAMPLES.parent


@pytest.fixture(scope="module")
def example() -> str:
    return "django_project"


@pytest.fixture(scope="module")
def worker(project: Project) -> Child:
    """The project's worker, which is the relay too."""
    project.run(*MANAGE, "migrate")
    return project.worker("config", "-B")


@pytest.fixture(scope="module")
def site(project: Project, worker: Child) -> httpx.Client:
    return project.web(*MANAGE, "runserver", "--noreload", "{port}")


def place(site: httpx.Client, email: str, cents: int) -> httpx.Response:
    return site.post("/orders/", json={"email": email, "cents": cents})


def test_the_event_and_the_task_of_a_committed_order_take_effect_and_a_failed_one_leaves_nothing(
    site: httpx.Client, project: Project
) -> None:
    tables = ("shop_customer", "shop_order", "outbox_all")
    counts = project.counts(*tables)
    assert place(site, "grace@example.org", 10_001).status_code == 409
    assert project.counts(*tables) == counts
    answer = place(site, "ada@example.org", 1250)
    assert answer.status_code == 201
    id = answer.json()["id"]
    mail = f"To ada@example.org: thank you for order {id}"
    shown = {"cents": 1250, "booked": True, "mails": [mail]}
    eventually(lambda: site.get(f"/orders/{id}/").json() == shown)
    query = "SELECT event_type, destination, state FROM outbox_all ORDER BY seq"
    sent = [("order.placed", "mail", "sent"), ("shop.tasks.book_order", "tasks", "sent")]
    eventually(lambda: project.rows(query) == sent)


def test_a_django_task_runs_on_the_celery_worker_and_its_result_can_be_read(site: httpx.Client) -> None:
    order = place(site, "edith@example.org", 1).json()["id"]

    def result_of(stars: int) -> dict[str, Any]:
        id = site.post(f"/orders/{order}/stars/", json={"stars": stars}).json()["result"]
        eventually(lambda: site.get(f"/results/{id}/").json()["status"] in ("SUCCESSFUL", "FAILED"))
        found: dict[str, Any] = site.get(f"/results/{id}/").json()
        return found

    assert result_of(5) == {"status": "SUCCESSFUL", "workers": 1, "value": {"order": order, "stars": 5}}
    assert result_of(6) == {"status": "FAILED", "workers": 1, "error": "builtins.ValueError"}


def run_tests(project: Project, directory: Path, *command: str) -> str:
    """What the command says. It takes its time."""
    env = {**os.environ, **project.env, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "config.settings"}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=240)
    return done.stdout + done.stderr


def test_the_projects_own_tests(project: Project) -> None:
    said = run_tests(project, project.directory, *MANAGE, "test", "--noinput", "shop")
    assert re.search(r"^Ran \d+ tests", said, re.MULTILINE), said
    assert "\nOK" in said, said


PYTEST = """
import pytest
from shop.models import Mail
from shop.tasks import book_order, write_confirmation

pytest_plugins = ["outbox_tasks.testing"]
ORDER = {"email": "ada@example.org", "cents": 1250}


@pytest.mark.django_db
def test_an_order_is_announced(outbox, client, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        order = client.post("/orders/", ORDER, "application/json").json()
    outbox.assert_published("order.placed", order_id=order["id"])
    outbox.assert_task(book_order, args=(order["id"],))
    assert callbacks == []
    with pytest.raises(Exception, match="Django rolls back the transaction of this test"):
        outbox.drain()


@pytest.mark.django_db(transaction=True)
def test_an_order_is_confirmed(outbox, client):
    client.post("/orders/", ORDER, "application/json")
    event, task = outbox.drain()
    write_confirmation.apply([event.json], task_id=str(event.id))
    assert Mail.objects.count() == 1


def test_without_a_mark(outbox):
    with pytest.raises(AssertionError, match="Nothing was published"):
        outbox.assert_published()


@pytest.mark.django_db
def test_the_page_leaves_no_connection(admin_client):
    assert admin_client.get("/outbox/").status_code == 200
"""


def test_the_fixture_under_pytest_django(project: Project, tmp_path: Path) -> None:
    pytest.importorskip("pytest_django")
    [before] = project.counts("outbox_all")
    shutil.copytree(project.directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "test_orders.py").write_text(PYTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # or it would follow a pyproject.toml in a directory above
    said = run_tests(project, tmp_path, *PYTHON, "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert "4 passed" in said, said
    assert project.counts("outbox_all") == [before]


def test_the_page_asks_django_who_visits_and_what_they_may_do(site: httpx.Client, project: Project) -> None:
    answer = site.get("/outbox/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/admin/login/?next=/outbox/")
    assert site.get("/outbox/", headers={"X-Refresh": "yes"}).status_code == 403  # a refresh can't sign in
    made = "from django.contrib.auth.models import Permission, User as U\n"
    made += "for name in ('anna', 'ben', 'chris'): U.objects.create_user(name, password='x', is_staff=True)\n"
    made += "U.objects.filter(username='anna').update(is_superuser=True)\n"
    made += "U.objects.get(username='ben').user_permissions.add(Permission.objects.get(codename='look'))"
    project.run(*MANAGE, "shell", "-c", made)

    def sign_in(name: str) -> None:
        site.cookies.clear()
        site.get("/admin/login/")
        login = {"username": name, "password": "x", "csrfmiddlewaretoken": site.cookies["csrftoken"]}
        assert site.post("/admin/login/?next=/outbox/", data=login).headers["location"] == "/outbox/"

    sign_in("chris")
    answer = site.get("/outbox/")
    assert (answer.status_code, "chris has none of the permissions" in answer.text) == (403, True)
    sign_in("ben")
    assert "ben · look" in site.get("/outbox/").text
    assert site.post("/outbox/destinations/mail/pause", data={"why": "a test"}).status_code == 403
    sign_in("anna")
    assert '<a href="/outbox/">Outbox</a>' in site.get("/admin/").text
    paused_on_the_page(site, "mail", "anna")
