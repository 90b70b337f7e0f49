"""The commands for destinations in trouble, as people and programs use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from outbox_tasks.cli import outbox
from outbox_tasks.store import Store
from outbox_tasks.traffic import Share
from tests.conftest import Rows, seconds_from_now

Run = Callable[..., Result]


@pytest.fixture
def run(store: Store, postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Run:
    """Runs `outbox-tasks` with these arguments, over the test's tables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTBOX_DATABASE_URL", postgres_url)
    monkeypatch.setenv("OUTBOX_DATABASE_SCHEMA", schema)
    monkeypatch.setenv("OUTBOX_DESTINATIONS", json.dumps({n: {"url": "a://b"} for n in ("orders", "mails")}))
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments: CliRunner().invoke(outbox, arguments, prog_name="outbox-tasks")


def states(run: Run) -> dict[str, str]:
    shown = json.loads(run("status", "--json").stdout)
    return {one["name"]: one["state"] for one in shown["destinations"]}


def test_a_destination_is_paused_shown_and_resumed(run: Run, store: Store, rows: Rows) -> None:
    rows.insert(3)
    assert states(run) == {"orders": "closed", "mails": "closed"}
    paused = run("pause", "orders", "--why", "moving house")
    assert (paused.exit_code, paused.stdout) == (0, "orders is paused. Its messages wait.\n")
    assert states(run)["orders"] == "paused"
    assert "moving house" in run("status").stdout
    assert store.traffic.admit({"orders": 1}, str(uuid4())) == {}
    assert run("resume", "orders").stdout == "orders goes on.\n"
    assert run("resume", "orders").stdout == "orders was neither paused nor in trouble.\n"
    assert store.traffic.admit({"orders": 1}, str(uuid4())) == {"orders": Share(1)}


def test_a_destination_that_is_left_alone_is_shown_with_the_reason(run: Run, store: Store) -> None:
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("mails", str(uuid4()), "connection", "refused by the other side")
    shown = run("status").stdout
    assert "left alone" in shown
    assert "5 sends in a row failed: connection: refused by the other side" in shown
    assert json.loads(run("resume", "mails", "--json").stdout) == {"resumed": "mails", "changed": True}
    assert states(run)["mails"] == "closed"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_name_that_nobody_knows_is_bad_usage(run: Run, command: str) -> None:
    refused = run(command, "oders")
    assert refused.exit_code == 2
    assert "'oders' is not configured; known: mails, orders" in refused.output


def test_keys_that_are_held_up_are_listed_with_what_holds_them(run: Run, rows: Rows) -> None:
    assert (run("keys").exit_code, run("keys").stdout) == (0, "No key is held up.\n")
    [dead] = rows.insert(1, key="order:42", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_400")
    rows.insert(3, key="order:42")
    listed = run("keys", "--blocked")
    assert listed.exit_code == 1
    assert "order:42" in listed.stdout
    [told] = json.loads(run("keys", "--json").stdout)["blocked"]
    assert (told["key"], told["id"], told["waiting"], told["last_error_code"]) == ("order:42", dead, 3, "http_400")
