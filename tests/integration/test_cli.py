"""The commands for destinations in trouble, as people and programs use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from outbox_tasks import Outbox
from outbox_tasks.cli import outbox
from outbox_tasks.relay.store import Store
from tests.claims import take_batch
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
    assert not take_batch(store)
    assert run("resume", "orders").stdout == "orders goes on.\n"
    assert run("resume", "orders").stdout == "orders was neither paused nor in trouble.\n"
    assert len(take_batch(store).messages) == 3


def test_a_destination_whose_circuit_is_open_is_shown_with_the_reason(run: Run, store: Store) -> None:
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("mails", str(uuid4()), "connection", "refused by the other side")
    assert "(connection: refused by the other side)" in " ".join(run("status").stdout.split())
    assert json.loads(run("resume", "mails", "--json").stdout) == {"resumed": "mails", "changed": True}
    assert states(run)["mails"] == "closed"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_name_that_nobody_knows_is_bad_usage(run: Run, command: str) -> None:
    refused = run(command, "oders")
    assert refused.exit_code == 2
    assert "'oders' is not configured; known: mails, orders" in refused.output


@pytest.mark.parametrize(
    "words",
    [
        "health --port 1", "health --serve --worker x", "doctor --alerts --test-alert", "status --prometheus --json",
        "init --adopt-broker --sql", "limit orders --clear --rate 2", "limit orders --clear --for 2h",
        "limit orders --for 2h", "list --by key --state dead", "show x --payload --payload extra",
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_bad_usage(run: Run, words: str) -> None:
    assert run(*words.split()).exit_code == 2


def test_keys_that_are_held_up_are_listed_with_what_holds_them(run: Run, rows: Rows) -> None:
    assert run("list", "--by", "key").stdout == "No key is held up.\n"
    [dead] = rows.insert(1, key="order:42", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_400")
    rows.insert(3, key="order:42")
    assert "orders  order:42  3 wait" in run("list", "--by", "key").stdout
    [told] = json.loads(run("list", "--by", "key", "--json").stdout)["keys"]
    assert (told["key"], told["id"], told["waiting"], told["last_error_code"]) == ("order:42", dead, 3, "http_400")


def test_a_second_pause_without_a_reason_keeps_the_first_ones(run: Run) -> None:
    def pauses() -> list[Any]:
        [one] = json.loads(run("status", "--json").stdout)["destinations"][-1:]
        return [one["paused_by"], one["paused_why"], one["paused_at"]]

    run("pause", "orders", "--who", "ada", "--why", "moving house")
    first = pauses()
    assert first[:2] == ["ada", "moving house"]
    run("pause", "orders", "--who", "bob")
    assert pauses() == first
    run("pause", "orders", "--who", "bob", "--why", "on holiday")
    assert pauses()[:2] == ["bob", "on holiday"]
    run("resume", "orders")
    run("pause", "orders", "--who", "eve")
    assert pauses()[:2] == ["eve", None]


@pytest.mark.parametrize("columns", [80, 120])
def test_keys_are_listed_with_the_whole_id_and_how_many_more_there_are(
    run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ids = []
    for n, key in enumerate(("order:1", "a-key-as-long-as-keys-are/" * 8, "order:3")):
        ids += rows.insert(1, key=key, status="dead", dead_at=seconds_from_now(n - 60), last_error_code="no" * 20)
        rows.insert(1, key=key)
    rows.insert(1, key="nobody waits", status="dead", dead_at=seconds_from_now(-90))
    whole = run("list", "--by", "key")
    assert whole.exit_code == 0
    assert [id for id in ids if id in whole.stdout] == ids
    assert "nobody waits" not in whole.stdout
    assert "more" not in whole.output
    some = run("list", "--by", "key", "--limit", "2")
    assert ids[2] not in some.stdout
    assert "There are more: --limit shows them." in some.stderr
    assert json.loads(run("list", "--by", "key", "--limit", "2", "--json").stdout)["more"] == 1
    assert json.loads(run("list", "--by", "key", "--destination", "mails", "--json").stdout)["keys"] == []
    assert "so: orders: dead messages hold up 3 keys." in run("status").stdout


def test_one_is_not_several(run: Run, rows: Rows) -> None:
    entry = {"at": "2026-01-01T00:00:00+00:00", "what": "dead", "attempt": 1, "code": "no"}
    [id] = rows.insert(1, status="dead", dead_at=seconds_from_now(-1), attempts=1, history=[entry])
    assert "1 dead letter waits for a person" in run("status").stdout
    assert "dead after 1 attempt: no" in run("show", id).stdout
    rows.insert(1, status="dead", dead_at=seconds_from_now(-1))
    assert "2 dead letters wait for a person" in run("status").stdout


def test_what_became_of_a_redrive(run: Run, rows: Rows) -> None:
    one, _ = rows.insert(2, status="dead", dead_at=seconds_from_now(-1), attempts=1)
    assert "What becomes of them: outbox-tasks audit --became 1" in run("redrive", "--all", "--yes").stdout
    assert (found := run("audit", "--became", "1")).stdout == "2 waiting.\n"
    assert found.exit_code == 0
    rows.change([one], status="dead", dead_at=seconds_from_now(0), last_error_code="http_422")
    assert (found := run("audit", "--became", "1")).stdout == "1 waiting, 1 dead again (http_422).\n"
    assert found.exit_code == 1
    assert json.loads(run("audit", "--became", "1", "--json").stdout)["known"] == 2
    assert "No. 2 of the audit is no redrive" in run("audit", "--became", "2").stderr


def test_an_error_is_an_object_too_where_a_program_reads(run: Run, rows: Rows) -> None:
    refused = run("audit", "--payload", "1", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout) == {"error": "No. 1 of the audit is no edit."}
    assert refused.stderr == "Error: No. 1 of the audit is no edit.\n"


@pytest.mark.parametrize("command", ["init", "list", "drain", "health", "status"])
def test_through_an_app_a_command_has_the_settings_that_its_code_made(
    command: str, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # without outbox.toml, and no variable names a database
    app = Celery("shop", broker="memory://", set_as_current=False)
    Outbox(store.settings).install(app)
    done = CliRunner().invoke(outbox, [command], obj=SimpleNamespace(app=app), prog_name="celery -A shop outbox")
    assert "database_url" not in done.output
    assert done.exit_code == (1 if command == "health" else 0), done.output
    app.close()


def test_a_mistyped_command_names_the_nearest_one() -> None:
    said = CliRunner().invoke(outbox, ["stauts"])
    assert said.exit_code == 2
    assert "No such command 'stauts'. Did you mean 'status'?" in said.stderr
    assert "Did you mean" not in CliRunner().invoke(outbox, ["xyzzy"]).stderr


def test_a_shell_completes_commands() -> None:
    asked = {"_OUTBOX_TASKS_COMPLETE": "bash_complete", "COMP_WORDS": "outbox-tasks sta", "COMP_CWORD": "1"}
    program = Path(sys.executable).with_name("outbox-tasks")
    done = subprocess.run(program, env={**os.environ, **asked}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["plain,status"]
