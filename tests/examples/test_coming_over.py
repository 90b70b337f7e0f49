"""The scripts that bring an application over: they move what an old table still has, all of it or nothing, and once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.examples.conftest import Project

OLD_TABLES = Path(__file__).with_name("django_celery_outbox.sql").read_bytes()
OWN_TABLE = """
CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY (START WITH %s) PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  event_type text NOT NULL, aggregate_id text, payload jsonb, sent_at timestamptz
)
"""
NUMBERS = count(1, 1000)
"""Each test has other numbers: what the tests before it have moved is still in the outbox."""

APP = """
from celery import Celery

app = Celery("shop", broker="memory://")
"""
STILL_OLD = """
from celery import Celery


class OutboxCelery(Celery):
    def send_task(self, *args, **options): ...


app = OutboxCelery("shop")
"""
TOML = """
[destinations.orders]
url = "redis+stream://localhost/orders"
max_bytes = 1000

[destinations.tasks]
url = "celery://"

[routes]
"order.*" = ["orders"]
"""


@pytest.fixture(scope="module")
def example() -> str:
    return "coming_over"


@pytest.fixture
def shop(project: Project, tmp_path: Path) -> Iterator[Shop]:
    """An application that has its old tables still, and an outbox with nothing in it."""
    (tmp_path / "outbox.toml").write_text(TOML)
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "still_old.py").write_text(STILL_OLD)
    with psycopg.connect(project.env["OUTBOX_DATABASE_URL"], autocommit=True) as connection:
        connection.execute(OLD_TABLES)
        connection.execute((OWN_TABLE % next(NUMBERS)).encode())
        yield Shop(project, tmp_path, connection)
        connection.execute("DROP TABLE celery_outbox, celery_outbox_dead_letter, outbox")


class Shop:
    def __init__(self, project: Project, directory: Path, connection: psycopg.Connection) -> None:
        self._project, self._directory, self.connection = project, directory, connection

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        """The exit code of one of the scripts, and what it prints."""
        argv = [sys.executable, str(self._project.directory / script), *arguments]
        env = {**self._project.env, "OUTBOX_NUDGE": "0", "PYTHONPATH": str(self._directory)}
        done = subprocess.run(argv, cwd=self._directory, env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def rows(self, query: str, *values: object) -> list[Any]:
        return self.connection.execute(query.encode(), values).fetchall()

    def add_task(self, name: str, *arguments: object, **columns: object) -> str:
        """A task as django-celery-outbox 0.4.3 writes it."""
        row = {
            "created_at": datetime.now(UTC), "retries": 0, "task_id": str(uuid4()), "task_name": name,
            "args": Jsonb(arguments), "kwargs": Jsonb({}), "options": Jsonb({"ignore_result": False}),
            "schema_version": 1, **columns,
        }  # fmt: skip
        names, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
        self.connection.execute(f"INSERT INTO celery_outbox ({names}) VALUES ({places})".encode(), row)
        return str(row["task_id"])

    def add_event(self, event_type: str, payload: object, aggregate_id: str | None = None) -> int:
        """An event in the table of its own; returns its number."""
        return int(
            self.rows(
                "INSERT INTO outbox (event_type, payload, aggregate_id) VALUES (%s, %s, %s) RETURNING id",
                event_type,
                Jsonb(payload) if payload is not None else None,
                aggregate_id,
            )[0][0]
        )

    def stored(self, task: str) -> dict[str, Any]:
        """A task that is in the outbox now: its state, its envelope, and its arguments."""
        [(state, headers, payload, deliver_at)] = self.rows(
            "SELECT a.state, a.headers, convert_from(m.payload, 'UTF8'), m.deliver_at "
            "FROM outbox_all a JOIN outbox_messages m USING (seq) WHERE a.aggregate_id = %s",
            task,
        )
        envelope = json.loads(headers["celery-message"])
        return {"state": state, "body": json.loads(payload), "deliver_at": deliver_at, **envelope}


def test_tasks_of_django_celery_outbox_keep_their_ids_arguments_and_options(shop: Shop) -> None:
    later, written = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) - timedelta(seconds=20)
    plain = shop.add_task("shop.send", 1, kwargs=Jsonb({"lang": "de"}), sentry_trace_id="trace-1")
    waits = shop.add_task("shop.send", 2, options=Jsonb({"eta": later.isoformat(), "queue": "mails"}))
    expires = shop.add_task("shop.send", 4, created_at=written, options=Jsonb({"expires": 30}))
    shop.connection.execute(
        "INSERT INTO celery_outbox_dead_letter (created_at, dead_at, retries, task_id, task_name, args, kwargs, "
        "options, schema_version) VALUES (now(), now(), 5, 'dead', 'shop.send', '[]', '{}', '{}', 1)"
    )
    code, told = shop.run("move_django_celery_outbox.py", "still_old:app")
    assert (code, "OutboxCelery still stores tasks in the old table." in told) == (1, True)
    told = "3 tasks would be moved.\n1 dead letters stay in celery_outbox_dead_letter.\n"
    assert shop.run("move_django_celery_outbox.py", "shop:app", "--dry-run") == (0, told)
    assert shop.rows("SELECT count(*) FROM celery_outbox") == [(3,)]
    code, told = shop.run("move_django_celery_outbox.py", "shop:app")
    assert (code, told.splitlines()[0]) == (0, "3 tasks moved; 0 had been moved before.")
    assert shop.rows("SELECT count(*) FROM celery_outbox") == [(0,)]

    task = shop.stored(plain)
    assert (task["state"], task["body"][:2]) == ("pending", [[1], {"lang": "de"}])
    assert (task["headers"]["id"], task["headers"]["task"]) == (plain, "shop.send")
    assert task["headers"]["sentry-trace"] == "trace-1"
    assert shop.stored(waits)["state"] == "scheduled"
    assert abs(shop.stored(waits)["deliver_at"] - later) < timedelta(seconds=1)
    assert "mails" in str(shop.stored(waits))
    until = datetime.fromisoformat(shop.stored(expires)["headers"]["expires"])
    assert abs(until - written - timedelta(seconds=30)) < timedelta(seconds=1), "counted from the call, not the move"

    shop.add_task("shop.send", 1, task_id=plain)  # an old backup of the table
    code, told = shop.run("move_django_celery_outbox.py", "shop:app")
    assert (code, told.splitlines()[0]) == (0, "0 tasks moved; 1 had been moved before.")
    assert shop.rows("SELECT count(*) FROM outbox_all WHERE aggregate_id = %s", plain) == [(1,)]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"schema_version": 2}, "its format is 2"),
        ({"updated_at": datetime(2100, 1, 1, tzinfo=UTC)}, "the old relay is sending it"),
        ({"options": Jsonb({"chord": {"task": "shop.log", "options": {}}})}, "needs a result backend"),
    ],
)
def test_a_task_that_cant_be_carried_keeps_all_where_they_are(
    shop: Shop, columns: dict[str, object], reason: str
) -> None:
    before = shop.rows("SELECT count(*) FROM outbox_all")
    shop.add_task("shop.fine", 1)
    shop.add_task("shop.odd", 2, **columns)
    code, told = shop.run("move_django_celery_outbox.py", "shop:app")
    assert (code, "task shop.odd" in told, reason in told) == (1, True, True)
    assert "Nothing is moved: 1 of 2 tasks can't be carried." in told
    assert shop.rows("SELECT count(*) FROM celery_outbox") == [(2,)]
    assert shop.rows("SELECT count(*) FROM outbox_all") == before


def test_events_of_a_table_of_its_own_keep_their_order_and_have_ids_that_stay(shop: Shop) -> None:
    first = shop.add_event("order.created", {"id": 1}, "order:1")
    second = shop.add_event("order.paid", {"id": 1}, "order:1")
    sent = shop.add_event("order.created", {"id": 0})
    shop.connection.execute("UPDATE outbox SET sent_at = now() WHERE id = %s", [sent])

    assert shop.run("move_own_table.py", "--dry-run") == (0, "2 rows would be moved.\n")
    assert shop.run("move_own_table.py") == (0, "2 rows moved.\n")
    ids = [uuid5(NAMESPACE_URL, f"outbox/{number}") for number in (first, second)]
    found = shop.rows("SELECT id, event_type, key, payload FROM outbox_all WHERE id = ANY (%s) ORDER BY seq", ids)
    assert [(id, kind, key) for id, kind, key, _ in found] == [
        (ids[0], "order.created", "order:1"),
        (ids[1], "order.paid", "order:1"),
    ]
    assert json.loads(found[0][3]) == {"id": 1}
    assert shop.rows("SELECT count(*) FROM outbox WHERE sent_at IS NULL") == [(0,)]

    shop.connection.execute("UPDATE outbox SET sent_at = NULL")  # as if the script had been cut off before its end
    shop.connection.execute("DELETE FROM outbox WHERE id = %s", [sent])
    assert shop.run("move_own_table.py") == (0, "2 rows moved.\n")
    assert shop.rows("SELECT count(*) FROM outbox_all WHERE id = ANY (%s)", ids) == [(2,)]

    shop.connection.execute("UPDATE outbox SET sent_at = NULL, payload = '{}' WHERE id = %s", [second])
    code, said = shop.run("move_own_table.py")
    assert (code, "another message, with other content, has it" in said) == (1, True)


def test_an_event_that_cant_be_carried_keeps_all_where_they_are(shop: Shop) -> None:
    before = shop.rows("SELECT count(*) FROM outbox_all")
    shop.add_event("order.created", {"id": 1})
    empty, large = shop.add_event("order.created", None), shop.add_event("order.created", {"text": "x" * 2000})
    code, told = shop.run("move_own_table.py")
    assert code == 1
    assert re.search(rf"row {empty}: .*it has no payload", told)
    assert re.search(rf"row {large}: .*takes at most 1000", told)
    assert "Nothing is moved: 2 of 3 rows can't be carried." in told
    assert shop.rows("SELECT count(*) FROM outbox WHERE sent_at IS NULL") == [(3,)]
    assert shop.rows("SELECT count(*) FROM outbox_all") == before


def test_the_calls_that_wait_for_a_commit_are_found(shop: Shop, tmp_path: Path) -> None:
    code = """
        transaction.on_commit(lambda: send.delay(order.pk, lang="de"))
        transaction.on_commit(partial(send.delay, order.pk))
        on_commit(send.delay)
        send.delay_on_commit(order.pk)
        transaction.on_commit(notify)
        event.listen(session, "after_commit", notify)
    """
    (tmp_path / "views.py").write_text("if True:" + code)
    exit_code, said = shop.run("find_calls.py", "views.py")
    assert exit_code == 1
    verdicts = [line.split()[1] for line in said.splitlines()[:-1]]
    assert verdicts == ["CHANGE", "stored", "stored", "stored", "look", "look"]
    assert "write partial(send.delay, order.pk, lang='de')" in said
    assert said.splitlines()[-1] == "3 stored, 1 CHANGE, 2 look"
