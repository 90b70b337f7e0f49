"""A project that `django-admin startproject` has made, with Celery as its documentation has it: few lines let it send
a task and an event if, and only if, the transaction commits."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from tests.conftest import eventually
from tests.examples.conftest import PYTHON, Project

MANAGE = (PYTHON[0], "manage.py")

MOST, LONGEST = 12, 100
"""Lines that are added or changed, and the characters of each."""

BEFORE = {
    "shop/__init__.py": """\
from .celery import app as celery_app

__all__ = ("celery_app",)
""",
    "shop/celery.py": """\
import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
""",
    "shop/urls.py": """\
from django.urls import path
from orders.views import place_order

urlpatterns = [path("orders/", place_order)]
""",
    "orders/models.py": """\
from django.db import models


class Order(models.Model):
    has_receipt = models.BooleanField(default=False)
""",
    "orders/tasks.py": """\
from celery import shared_task

from orders.models import Order


@shared_task
def send_receipt(order_id):
    Order.objects.filter(pk=order_id).update(has_receipt=True)
""",
    "orders/views.py": """\
from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from orders.models import Order
from orders.tasks import send_receipt


@csrf_exempt
def place_order(request):
    with transaction.atomic():
        order = Order.objects.create()
        send_receipt.delay(order.pk)
        if "fails" in request.GET:
            raise ValueError
    return JsonResponse({"id": order.pk})
""",
}

CHANGES = {
    "shop/settings.py": [
        ("    'orders',\n", "    'orders',\n    'outbox_tasks.django',\n"),
        (
            "CELERY_BROKER_URL = ",
            """\
OUTBOX = {
    "destinations": {"tasks": "celery://", "events": "redis+stream://{host}/{database}/orders"},
}
CELERY_BROKER_URL = """,
        ),
    ],
    "shop/celery.py": [
        ("from celery import Celery\n", "from celery import Celery\nfrom outbox_tasks import Outbox\n"),
        ("app.autodiscover_tasks()\n", "app.autodiscover_tasks()\noutbox = Outbox()\noutbox.install(app)\n"),
    ],
    "orders/views.py": [
        ("import transaction\n", "import connection, transaction\n"),
        ("import send_receipt\n", "import send_receipt\nfrom shop.celery import outbox\n"),
        (
            "        send_receipt.delay(order.pk)\n",
            """\
        outbox.delay(connection, send_receipt, order.pk)
        outbox.publish(connection, "order.placed", {"id": order.pk}, to="events")
""",
        ),
    ],
}


@pytest.fixture
def project(tmp_path: Path, database: str, broker_url: str) -> Iterator[Project]:
    """The project before it has an outbox."""
    directory, url = tmp_path / "shop", urlsplit(database)
    directory.mkdir()
    made = Project(directory, tmp_path, {})
    made.run(*PYTHON, "django", "startproject", "shop", ".")
    made.run(*MANAGE, "startapp", "orders")
    for path, text in BEFORE.items():
        (directory / path).write_text(text)
    described = {
        "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username, "PASSWORD": url.password,
        "HOST": url.hostname, "PORT": url.port,
    }  # fmt: skip
    settings = directory / "shop" / "settings.py"
    text = settings.read_text().replace("INSTALLED_APPS = [\n", "INSTALLED_APPS = [\n    'orders',\n")
    text += f"\nDATABASES = {{'default': {described}}}\nCELERY_BROKER_URL = {broker_url!r}\n"
    settings.write_text(text)
    yield from made.used()


def adopt(directory: Path, host: str, database: str) -> list[str]:
    """Add an outbox to the project. Returns the lines that are added or changed."""
    lines: list[str] = []
    for path, changes in CHANGES.items():
        file = directory / path
        before = after = file.read_text()
        for old, new in changes:
            assert after.count(old) == 1, old
            after = after.replace(old, new.replace("{host}", host).replace("{database}", database))
        file.write_text(after)
        diff = difflib.ndiff(before.splitlines(), after.splitlines())
        lines += [line for line in diff if line.startswith("+ ")]
    return lines


def test_a_few_lines_let_a_fresh_project_send_what_it_commits(project: Project, database: str, broker_url: str) -> None:
    broker = urlsplit(broker_url)
    lines = adopt(project.directory, broker.netloc, broker.path.removeprefix("/"))
    assert len(lines) <= MOST, "\n".join(lines)
    assert max(map(len, lines)) <= LONGEST + len("+ "), "\n".join(lines)
    for command in (["makemigrations", "orders"], ["check", "--fail-level", "WARNING"], ["migrate"]):
        project.run(*MANAGE, *command)
    project.worker("shop", "-B")
    site = project.web(*MANAGE, "runserver", "--noreload", "{port}")
    assert site.post("/orders/?fails").status_code == 500
    order = site.post("/orders/").json()["id"]
    with redis.Redis.from_url(broker_url, decode_responses=True) as client, psycopg.connect(database) as connection:
        query = "SELECT id, has_receipt FROM orders_order"
        eventually(lambda: connection.execute(query).fetchall() == [(order, True)] and client.xlen("orders"))
        assert [event["data"] for _, event in client.xrange("orders")] == [f'{{"id":{order}}}']
