"""Passwords, tokens and the paths of webhooks are in no output, log, error or table."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, select, text

from outbox_tasks import Settings
from outbox_tasks.cli import outbox as commands
from tests.conftest import Rows, seconds_from_now

SECRET = "hunter2+hunter/2"
"""In a URL it looks different: see `URL_SECRET`."""
URL_SECRET = quote(SECRET, safe="")
SEEN = ("hunter2", "hunter/2")
NOBODY = "127.0.0.1:1"
"""Nobody listens there."""

DESTINATIONS = {
    "celery": f"celery://?task=shop.on_order&broker={quote(f'redis://:{URL_SECRET}@{NOBODY}/0', safe='')}",
    "http": f"http://{NOBODY}/{URL_SECRET}?outbox_private=allow&outbox_bearer={URL_SECRET}",
    "kafka": f"kafka://ada:{URL_SECRET}@{NOBODY}/orders",
    "stream": f"redis+stream://:{URL_SECRET}@{NOBODY}/0/orders",
}


@pytest.fixture
def values(engine: Engine, rows: Rows, schema: str) -> Iterator[dict[str, Any]]:
    """Settings that are full of secrets."""
    name = f"{schema}_role"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}' IN ROLE {engine.url.username}"))
    url = engine.url.set(drivername="postgresql", username=name, password=SECRET)
    destinations = {one: {"url": place} for one, place in DESTINATIONS.items()}
    yield {
        "database_url": url.render_as_string(hide_password=False),
        "database_schema": schema,
        "broker_url": f"redis://:{URL_SECRET}@{NOBODY}/0",
        "broker_transport_options": {"password": SECRET},
        "destinations": destinations,
        "alert_webhook": f"http://{NOBODY}/{URL_SECRET}",
        "archive_export": f"sftp://ada:{URL_SECRET}@{NOBODY}/archive",
        "breaker_failures": 1,
        "send_timeout": 1,
    }
    with engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}; DROP ROLE {name}"))


def clean(said: str) -> bool:
    return not any(secret in said for secret in (*SEEN, URL_SECRET))


def test_nothing_that_people_logs_and_tables_are_told_has_a_secret(
    values: dict[str, Any],
    rows: Rows,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in values.items():
        monkeypatch.setenv(f"OUTBOX_{name.upper()}", value if isinstance(value, str) else json.dumps(value))
    assert clean(repr(Settings()) + str(Settings()))
    caplog.set_level(logging.DEBUG, "outbox_tasks")
    ids = [rows.insert(1, destination=name)[0] for name in values["destinations"]]
    dead = rows.insert(1, destination="kafka", status="dead", attempts=1, dead_at=seconds_from_now(-1))

    def run(*arguments: str) -> str:
        said = CliRunner().invoke(commands, arguments, prog_name="outbox-tasks")
        assert clean(said.output), arguments
        assert said.exception is None or isinstance(said.exception, SystemExit), arguments
        return said.output

    run("drain")
    shown = run("status")
    with rows.engine.connect() as connection:
        failed = connection.execute(select(rows.tables.destinations.c.name, rows.tables.destinations.c.error)).all()
    assert {name for name, error in failed if error} == values["destinations"].keys(), "each was tried, and failed"
    for command in ("list", "list --by error", "list --by key", "doctor --alerts", "audit"):
        run(*command.split())
        run(*command.split(), "--json")
    for command in (
        ("doctor",), ("health", "--json"), ("show", ids[0]), ("show", ids[0], "--json"),
        ("status", "--prometheus"), ("maintain",),
        ("doctor", "--test-alert"), ("export",),
        ("pause", "http", "--why", "a test"), ("resume", "http"), ("redrive", *dead, "--yes"),
    ):  # fmt: skip
        run(*command)
    assert clean(caplog.text)
    assert "http" in shown
    names = ("messages", "archive", "destinations", "inbox", "audit", "acts", "tallies", "heartbeats", "alerts")
    for table in (getattr(rows.tables, name) for name in names):
        with rows.engine.connect() as connection:
            assert clean(str(connection.execute(table.select()).all())), table.name
