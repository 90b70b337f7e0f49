"""The commands for destinations in trouble, and what all commands have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def test_a_destination_is_paused_and_resumed_or_its_circuit_is_closed(run: Run, store: Store, rows: Rows) -> None:
    rows.insert(3)
    paused = run("pause", "orders", "--why", "moving house")
    assert (paused.exit_code, paused.stdout) == (0, "orders is paused. Its messages wait.\n")
    assert not take_batch(store)
    assert run("resume", "orders").stdout == "orders goes on.\n"
    assert run("resume", "orders").stdout == "orders was neither paused nor in trouble.\n"
    assert len(take_batch(store).messages) == 3
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("mails", str(uuid4()), "connection", "refused by the other side")
    assert json.loads(run("resume", "mails", "--json").stdout) == {"resumed": "mails", "changed": True}
    assert not store.traffic.states()


def test_a_name_that_nobody_knows_is_bad_usage(run: Run) -> None:
    refused = run("pause", "oders")
    assert refused.exit_code == 2
    assert "'oders' is not configured; known: mails, orders" in refused.output


def test_options_that_do_not_go_together_are_bad_usage() -> None:
    for words in (
        "health --port 1", "health --serve --worker x", "doctor --alerts --test-alert", "status --prometheus --json",
        "init --adopt-broker --sql", "list --by key --state dead", "show x --payload --payload extra",
        *(f"limit orders {more}" for more in ("--clear --rate 2", "--clear --for 2h", "--for 2h")),
    ):  # fmt: skip
        refused = CliRunner().invoke(outbox, words.split())
        assert refused.exit_code == 2, words
        assert "not configured" not in refused.output, words  # no destination is: the options are looked at before


@pytest.mark.parametrize("columns", [80, 120])
def test_keys_are_listed_with_what_holds_them_and_how_many_more_there_are(
    run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run("list", "--by", "key").stdout == "No key is held up.\n"
    ids = []
    for n, key in enumerate(("order:1", "a-key-as-long-as-keys-are/" * 8, "order:3")):
        ids += rows.insert(1, key=key, status="dead", dead_at=seconds_from_now(n - 60), last_error_code="no" * 20)
        rows.insert(n + 1, key=key)
    rows.insert(1, key="nobody waits", status="dead", dead_at=seconds_from_now(-90))
    whole = run("list", "--by", "key")
    assert (whole.exit_code, [id for id in ids if id in whole.stdout]) == (0, ids)  # no id is cut
    assert "orders  order:1  1 waits" in whole.stdout
    assert "nobody waits" not in whole.stdout
    assert "more" not in whole.output
    some = run("list", "--by", "key", "--limit", "2")
    assert ids[2] not in some.stdout
    assert "There are more: --limit shows them." in some.stderr
    facts = json.loads(run("list", "--by", "key", "--limit", "2", "--json").stdout)
    [first, _] = facts["keys"]
    assert (facts["more"], first["key"], first["id"], first["waiting"]) == (1, "order:1", ids[0], 1)
    assert json.loads(run("list", "--by", "key", "--destination", "mails", "--json").stdout)["keys"] == []


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


def test_through_an_app_a_command_has_the_settings_that_its_code_made(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # without outbox.toml, and no variable names a database
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        Outbox(store.settings).install(app)
        for command, code in (("list", 0), ("drain", 0), ("health", 1), ("status", 0)):
            done = CliRunner().invoke(
                outbox, [command], obj=SimpleNamespace(app=app), prog_name="celery -A shop outbox"
            )
            assert "database_url" not in done.output
            assert done.exit_code == code, done.output


def test_every_command_is_in_the_help_in_one_line() -> None:
    lines = CliRunner().invoke(outbox, ["--help"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) > 30
    assert not [line for line in lines[1:] if line.endswith("...")]
