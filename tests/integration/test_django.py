"""The outbox tables as a Django app: `manage.py migrate` makes them, and `manage.py test` has them too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from outbox_tasks.database.engine import engine_url
from outbox_tasks.database.schema import VERSION
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.settings.django_project import database_url, place_of
from tests.docs.interpreter import BlockFailed, Interpreter

ROOT = Path(__file__).parents[2]

SETTINGS = """
import json, os
OUTBOX = json.loads(os.environ.get("OUTBOX_OF_DJANGO", "{}"))
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["outbox_tasks.django", "shop", *os.environ.get("MORE_APPS", "").split()]
DATABASES = {"default": json.loads(os.environ["DATABASE"])}
"""

TESTS = """
from django.db import connection, transaction
from django.test import TestCase
from outbox_tasks import Outbox, Settings
from outbox_tasks.errors import ResultNotThereYet

class OnCommit(TestCase):
    def test_only_the_callbacks_of_the_application_are_seen(self):
        destinations = {"orders": {"url": "a://b"}, "tasks": {"url": "celery://"}}
        outbox = Outbox(Settings(broker_url="redis://127.0.0.1:1/0", destinations=destinations))
        called = []
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            with transaction.atomic():
                outbox.publish(connection, "order.created", {"id": 1}, to="orders")
                result = outbox.delay(connection, "mail.send")
                transaction.on_commit(lambda: called.append(1))
        assert called == [1]
        assert len(callbacks) == 1
        with self.assertRaises(ResultNotThereYet):
            result.get(timeout=1)
"""


PERMISSIONS = """
from django.contrib.auth.models import Permission
ours = Permission.objects.filter(content_type__app_label="outbox_tasks")
print("Permissions:", *ours.values_list("codename", flat=True))
"""


RELAY = """
from celery import Celery
from outbox_tasks import Outbox
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
outbox = Outbox(celery=app)
outbox.install(app)
"""

DELIVERED = """
from django.db import connection, transaction
from outbox_tasks.relay.send_all import send_all
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from relay import outbox
with transaction.atomic():
    outbox.publish(connection, "order.created", {"id": 1})
print("Nudge:", outbox.settings.nudge)
print("Drained:", send_all(Store.connect(outbox.settings), Publishers(outbox.settings), Listener()))
"""


MANAGE = """
from django.core.management import execute_from_command_line
for command in commands:
    try:
        execute_from_command_line(["manage.py", *command])
    except SystemExit as end:
        if end.code:
            raise
"""


class Project:
    """A Django project in a directory, over a database of its own."""

    def __init__(self, directory: Path, engine: Engine, database: str) -> None:
        self.directory = directory
        (directory / "settings.py").write_text(SETTINGS)
        (directory / "shop").mkdir()
        (directory / "shop" / "__init__.py").touch()
        (directory / "shop" / "tests.py").write_text(TESTS)
        url = engine.url.set(database=database)
        described = {
            "ENGINE": "django.db.backends.postgresql", "NAME": database, "USER": url.username or "",
            "PASSWORD": url.password or "", "HOST": url.host or "", "PORT": url.port or "",
            "TEST": {"NAME": f"{database}_test"},
        }  # fmt: skip
        self.env = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "DATABASE": json.dumps(described)}
        self.url = url

    def manage(self, *commands: tuple[str, ...], fails: bool = False, **env: str) -> str:
        """Run the commands of manage.py one after the other, in one process. Returns what they say."""
        failure = ""
        with Interpreter(self.directory, {**self.env, **env}) as python:
            try:
                python.run(f"commands = {commands!r}{MANAGE}", "manage.py", 1, 60 * len(commands))
            except BlockFailed as error:
                failure = str(error)
            said = python.said()
        assert bool(failure) is fails, failure
        (self.directory / "python.out").unlink(missing_ok=True)
        return said + failure


@pytest.fixture
def project(engine: Engine, tmp_path: Path) -> Iterator[Project]:
    name = f"outbox_django_{uuid4().hex[:8]}"
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        try:
            yield Project(tmp_path, engine, name)
        finally:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def versions(project: Project) -> list[int]:
    engine = create_engine(project.url)
    try:
        with engine.connect() as connection:
            return list(connection.scalars(text("SELECT version FROM outbox_versions ORDER BY 1")))
    finally:
        engine.dispose()


SAID = {"destinations": {"orders": {"url": "http://127.0.0.1:1/"}}}

MIGRATE = ("migrate",)


def test_migrate_makes_the_tables_and_the_permissions_of_the_page_and_a_test_finds_them(project: Project) -> None:
    project.env.update(MORE_APPS="django.contrib.auth django.contrib.contenttypes", OUTBOX_OF_DJANGO=json.dumps(SAID))
    shown = ("shell", "--no-imports", "-c", PERMISSIONS)
    said = project.manage(MIGRATE, ("makemigrations", "--check", "--dry-run"), shown, ("check",), ("test", "shop"))
    assert "Applying outbox_tasks.0001_initial..." in said  # a line of a log may stand before its OK
    assert versions(project)
    assert "No changes detected" in said
    assert "Permissions: act look payload\n" in said
    assert "no issues" in said
    assert "Ran 1 test" in said
    assert versions(project) == [VERSION]


CALLED = """
from django.core.management import call_command
call_command("outbox", "list", "--json")
print("Returned")
"""


def test_the_settings_of_a_project_are_enough(project: Project) -> None:
    (project.directory / "relay.py").write_text(RELAY)
    # As Celery's documentation has it: the project makes its Celery app before Django reads the settings.
    (project.directory / "shop" / "__init__.py").write_text("from relay import app")
    project.env.update(DJANGO_SETTINGS_MODULE="shop.settings")
    (project.directory / "settings.py").unlink()
    (project.directory / "shop" / "settings.py").write_text(f'{SETTINGS}CELERY_BROKER_URL = "redis://127.0.0.1:1/0"\n')
    (project.directory / "outbox.toml").write_text("nudge = true")
    project.env.update(OUTBOX_OF_DJANGO=json.dumps(SAID | {"nudge": False}))
    redrive = ("outbox", "redrive", "--pythonpath=.", "--settings", "shop.settings", "--all", "--dry-run")
    shells = [("shell", "--no-imports", "-c", code) for code in (DELIVERED, CALLED)]
    output = project.manage(MIGRATE, ("outbox", "--help"), ("help", "outbox"), *shells, redrive)
    assert output.count("Usage: manage.py outbox [OPTIONS] COMMAND") == 2
    assert "Nudge: False" in output, "the file won"
    assert "Drained: outage 1" in output
    assert "Returned" in output
    assert "There is nothing to redrive." in output
    output = project.manage(("outbox", "doctor", "--json"), fails=True)
    assert "broker_away" in output
    assert "celery -A shop worker" in output
    assert "celery -A outbox_tasks" not in output


def test_check_tells_of_settings_that_can_t_be_right(project: Project) -> None:
    said = project.manage(("check",), fails=True, OUTBOX_OF_DJANGO='{"claim_intervall": 1}')
    assert "(outbox_tasks.E004) Setting claim_intervall" in said
    said = project.manage(("check",))
    assert "(outbox_tasks.W002) No destination is configured" in said
    assert "to OUTBOX in Django's settings" in said
    sqlite = json.dumps({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"})
    said = project.manage(("check",), MIGRATE, fails=True, DATABASE=sqlite, OUTBOX_OF_DJANGO=json.dumps(SAID))
    assert "(outbox_tasks.W003) The relay has no database" in said
    assert "W002" not in said
    assert "dialect is 'sqlite', and only postgresql is supported here" in said
    assert "Django's database 'default'" in said
    assert "router" in said
    (project.directory / "shop" / "__init__.py").write_text("from relay import app")
    (project.directory / "relay.py").write_text(f"{RELAY}\napp.conf.task_always_eager = True")
    said = project.manage(("check",), OUTBOX_OF_DJANGO=json.dumps(SAID))
    assert "(outbox_tasks.W005) The Celery app 'shop' is eager (task_always_eager)" in said


STORED = """
from django.db import connection, transaction
from outbox_tasks import Outbox
with transaction.atomic():
    Outbox(feed=None).delay(connection, "shop.gone", 1)
"""


def test_check_deploy_tells_of_stored_tasks_that_the_project_can_not_run(project: Project) -> None:
    project.env.update(OUTBOX_OF_DJANGO='{"destinations": {"tasks": {"url": "celery://"}}, "nudge": false}')
    said = project.manage(("check", "--deploy"))
    assert "(outbox_tasks.W006) The stored tasks were not checked. The outbox tables are not in" in said
    said = project.manage(MIGRATE, ("check", "--deploy"), ("shell", "--no-imports", "-c", STORED), ("check",))
    assert "outbox_tasks.W006" not in said
    said = project.manage(("check", "--deploy"), fails=True)
    assert "(outbox_tasks.E005) Stored tasks would fail: 1 shop.gone to tasks: there is no such task; the first" in said


ROLE = """
from outbox_tasks import Settings
from outbox_tasks.relay.store import Store
print("Role:", Store.connect(Settings()).ask("doctor/server.sql", place=None)[0].role)
"""


def test_a_database_of_another_engine_and_an_assumed_role_are_the_relay_s_too(project: Project) -> None:
    """The engine's name does not say that it is PostgreSQL."""
    backend = project.directory / "psqlextra" / "backend"
    backend.mkdir(parents=True)
    (backend / "base.py").write_text("from django.db.backends.postgresql.base import DatabaseWrapper\n")
    role = f"{project.url.database} owner's"
    engine = create_engine(project.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f'CREATE ROLE "{role}"; GRANT ALL ON SCHEMA public TO "{role}"')
    try:
        described = json.loads(project.env["DATABASE"]) | {
            "ENGINE": "psqlextra.backend",
            "OPTIONS": {"assume_role": role},
        }
        project.env.update(DATABASE=json.dumps(described), OUTBOX_OF_DJANGO=json.dumps(SAID))
        said = project.manage(("check",), MIGRATE, ("shell", "--no-imports", "-c", ROLE), ("outbox", "status"))
        assert "no issues" in said
        assert f"Role: {role}\n" in said
        assert "No worker serves outbox.claim" in said
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')
        engine.dispose()


def test_a_variable_that_names_another_database_than_the_project_is_found(project: Project) -> None:
    """Nothing that the project publishes would be sent, and each command would look at the wrong database."""
    project.env.update(OUTBOX_OF_DJANGO=json.dumps(SAID))
    for other, warned in (({"database": "postgres"}, True), ({"host": "localhost"}, False)):
        named = project.url.set(drivername="postgresql", **other).render_as_string(hide_password=False)
        doctor = ("outbox", "doctor", "--only", "two_places")
        said = project.manage(MIGRATE, ("check",), doctor, fails=warned, OUTBOX_DATABASE_URL=named)
        assert ("(outbox_tasks.W004) OUTBOX_DATABASE_URL names postgresql://" in said) is warned, said
        assert ("and DATABASES['default'] names postgresql://" in said) is warned
        assert ("two_places" in said) is warned, said


def test_a_command_finds_the_project_in_its_directory(project: Project) -> None:
    command = [str(Path(sys.executable).with_name("outbox-tasks")), "init"]
    (project.directory / "broken.py").write_text("import of_nobody")
    for module in ("broken", "settings", "shop.lost"):
        env = {**project.env, "DJANGO_SETTINGS_MODULE": module}
        done = subprocess.run(command, cwd=project.directory, env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) is (module == "settings"), done.stderr
        assert ("No module named 'of_nobody'" in done.stderr) is (module == "broken")
    project.manage(MIGRATE, ("migrate", "outbox_tasks", "zero"))  # Django leaves alone what it has not made
    assert versions(project) == [VERSION]
    assert "Setting DJANGO_SETTINGS_MODULE = 'shop.lost' is not usable: there is no such module;" in done.stderr


URLS: list[tuple[dict[str, Any], str]] = [
    ({"NAME": "shop", "USER": "ann", "PASSWORD": "p@ss/word", "HOST": "db.example", "PORT": 6432},
     "postgresql://ann:p%40ss%2Fword@db.example:6432/shop"),
    ({"NAME": "shop", "HOST": "/run/postgresql"}, "postgresql:///shop?host=%2Frun%2Fpostgresql"),
    ({"NAME": "shop", "HOST": "db", "PORT": "", "OPTIONS": {"sslmode": "require", "pool": True}},
     "postgresql://db/shop?sslmode=require"),
    ({"OPTIONS": {"service": "shop"}}, "postgresql://?service=shop"),
    ({"NAME": "shop", "HOST": "a,b", "PORT": "5432,5433"}, "postgresql:///shop?host=a%2Cb&port=5432%2C5433"),
]  # fmt: skip


def test_the_url_of_django_s_database() -> None:
    for described, url in URLS:
        assert database_url(described) == url
        engine_url(url)
    with pytest.raises(ConfigurationError, match="Setting PORT in DATABASES = 'five' is not usable"):
        database_url({"NAME": "shop", "HOST": "db", "PORT": "five"})
    whole = make_url("postgresql://ann@db:5432/shop?sslmode=require")
    assert place_of(make_url("postgresql://db/shop")) == place_of(whole)
    assert place_of(make_url("postgresql://db/shop")) != place_of(make_url("postgresql://db:5433/shop"))


TWO_DATABASES = """
from settings import *
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "relay": DATABASES["default"]}
DATABASE_ROUTERS = ["two.Router"]
USE_TZ = False
TIME_ZONE = "Asia/Tokyo"

class Router:
    def allow_migrate(self, db, app_label, **hints):
        return (db == "relay") == (app_label == "outbox_tasks")
"""

IN_TWO_DATABASES = """
from datetime import datetime, timedelta
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase
from outbox_tasks import Outbox
from outbox_tasks.errors import UnsupportedDatabase
from outbox_tasks.testing import OutboxProbe
outbox = Outbox()

class Rolled(TestCase):
    databases = ["default", "relay"]

    def test_the_tables_are_in_the_second_database_only(self):
        with OutboxProbe() as probe:
            with transaction.atomic(using="relay"):
                outbox.publish(connections["relay"], "order.created", {"id": 1})
            probe.assert_published("order.created", id=1)
        with self.assertRaises(UnsupportedDatabase), transaction.atomic():
            outbox.publish(connection, "order.created", {"id": 1})

class Sent(TransactionTestCase):
    databases = ["relay"]

    def test_times_without_a_zone_are_those_of_the_project(self):
        soon = datetime.now().replace(microsecond=0) + timedelta(minutes=5)
        with OutboxProbe() as probe:
            with transaction.atomic(using="relay"):
                outbox.publish(connections["relay"], "order.created", {"at": soon})
                outbox.publish(connections["relay"], "order.late", {}, delay=300)
            assert [message.json for message in probe.drain()] == [{"at": soon.isoformat()}]
            late = probe.assert_published("order.late")
        assert abs(late.due.astimezone().replace(tzinfo=None) - soon) < timedelta(minutes=1), (late, soon)
"""


def test_of_several_databases_a_router_chooses_that_of_the_outbox(project: Project) -> None:
    (project.directory / "two.py").write_text(TWO_DATABASES)
    (project.directory / "shop" / "tests.py").write_text(IN_TWO_DATABASES)
    url = project.url.set(drivername="postgresql").render_as_string(hide_password=False)
    said = json.dumps(SAID | {"database_url": url})
    project.env.update(DJANGO_SETTINGS_MODULE="two", OUTBOX_OF_DJANGO=said)
    told = project.manage(MIGRATE, (*MIGRATE, "--database", "relay"), ("check",), ("test", "shop"))
    assert versions(project) == [VERSION]
    assert "no issues" in told
    assert "Ran 2 tests" in told
