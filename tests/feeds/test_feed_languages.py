"""Writers in other languages: they call what `init` made, or run an INSERT."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import make_url

from outbox_tasks.feeds.source import Source
from tests.feeds.places import Place, made, overlapping, place, run, source

__all__ = ["made", "overlapping", "place", "source"]

SCRIPT = Path(__file__).parents[2] / "examples/php_mysql/order.php"


class TestOtherLanguages:
    """They write with what `init` made, or with an INSERT."""

    @pytest.fixture
    def calls(self, place: Place) -> str:
        return {
            "mysql": "CALL outbox_publish(%s, %s, %s, %s)",
            "mariadb": "CALL outbox_publish(%s, %s, %s, %s)",
            "postgresql": "SELECT outbox_feed_publish(%s, %s, %s, %s)",
            "sqlite": """INSERT INTO outbox_feed (id, message, ordering_key)
                        SELECT lower(substr(hex(randomblob(18)), 1, 36)),
                          json_patch(json_object('event_type', ?, 'content_type', 'application/json', 'text', ?), more),
                          key
                        FROM (SELECT ? AS key, coalesce(?, '{}') AS more)""",
        }[place.dialect]

    def test_a_message_has_the_fields_that_the_relay_reads(self, place: Place, source: Source, calls: str) -> None:
        writer = place.connect()
        payload = '{"name": "Zoë 😀", "quoted": "\\"\\\\"}'
        run(writer, calls, ("order.created", payload, "order:42", '{"destination": "orders", "delay": 5}'))
        run(writer, calls, ("order.created", payload, None, None))
        writer.commit()
        one, two = source.look(10)
        assert (one.key, two.key) == ("order:42", None)
        common = {"event_type": "order.created", "content_type": "application/json", "text": payload}
        assert json.loads(one.message) == {**common, "destination": "orders", "delay": 5}
        assert json.loads(two.message) == common
        assert (len(one.id), len(two.id), one.id != two.id) == (36, 36, True)

    def test_postgresql_takes_json_of_each_type(self, place: Place, source: Source) -> None:
        if place.dialect != "postgresql":
            pytest.skip("others have no such types")
        writer = place.connect()
        for payload in ("'{}'", "'{}'::json", "'{}'::jsonb", "'{}'::text"):
            run(writer, f"SELECT outbox_feed_publish('order.created', {payload}, key => '5')")
        run(writer, "SELECT outbox_feed_publish('order.created', json_build_object('id', 42))")
        writer.commit()
        *those, last = source.look(20)
        assert [(json.loads(row.message)["text"], row.key) for row in those] == [("{}", "5")] * 4
        assert (json.loads(last.message)["text"], last.key) == ('{"id" : 42}', None)

    def test_what_is_no_message_is_refused(self, place: Place, source: Source, calls: str) -> None:
        if place.dialect not in ("mysql", "mariadb"):
            pytest.skip("the procedure checks it; elsewhere it becomes a dead letter")
        for values, says in (
            (("", "{}", None, None), "event_type"), (("a", "{", None, None), "JSON|json"),
            (("a", None, None, None), "payload"), (("a", "{}", "", None), "message_key"),
            (("a", "{}", None, "[]"), "options"),
        ):  # fmt: skip
            with pytest.raises(pymysql.Error, match=says):
                run(place.connect(), calls, values)
        assert source.look(1) == []


@pytest.fixture
def php(place: Place) -> Place:
    if place.dialect not in ("mysql", "mariadb"):
        pytest.skip("the example is for MySQL and MariaDB")
    if shutil.which("php") is None or "pdo_mysql" not in subprocess.check_output(["php", "-m"], text=True):
        pytest.skip("PHP with pdo_mysql is not installed")
    return place


def test_the_php_example_publishes_only_what_was_committed(php: Place, source: Source) -> None:
    url = make_url(php.url)
    dsn = f"mysql:host={url.host};port={url.port};dbname={url.database};charset=utf8mb4"
    env = {**os.environ, "DSN": dsn, "DB_USER": "root"}
    for email, code in (("zoë", 1), ("ada@example.org", 0)):
        done = subprocess.run(["php", SCRIPT, email], env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
    (row,) = source.look(10)
    ((id, email),) = run(php.connect(), "SELECT id, email FROM orders")
    message = json.loads(row.message)
    assert (row.key, message["event_type"], email) == (f"order:{id}", "order.created", "ada@example.org")
    assert json.loads(message["text"]) == {"id": id, "email": "ada@example.org"}
