"""The command, as people and programs use it, whatever is away."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine

from outbox_tasks.cli import outbox
from outbox_tasks.operating.problems import examine
from tests.conftest import MakeSettings, Rows, Stream
from tests.integration.doctoring import NOBODY, sql

Run = Callable[..., Result]


@pytest.fixture
def run(
    rows: Rows,
    postgres_url: str,
    broker_url: str,
    schema: str,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> Run:
    """Runs `outbox-tasks` over the test's tables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTBOX_DATABASE_URL", postgres_url)
    monkeypatch.setenv("OUTBOX_DATABASE_SCHEMA", schema)
    monkeypatch.setenv("OUTBOX_BROKER_URL", broker_url)
    monkeypatch.setenv("OUTBOX_DESTINATIONS", json.dumps({"orders": {"url": stream.url}}))
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(outbox, ["doctor", *arguments], prog_name="outbox-tasks")


def test_root_causes_come_with_cause_remedies_and_what_follows(run: Run) -> None:
    told = run()
    assert told.exit_code == 1
    lines = told.stdout.splitlines()
    assert lines[0].startswith("✗ No worker serves outbox.claim, outbox.publish, outbox.drain, outbox.maintain:")
    assert "    → celery -A outbox_tasks worker -Q outbox.claim,outbox.maintain -n claim@%h" in lines
    assert "    so: Beat has never ticked here." in lines
    assert any(line.startswith("Database: it answers and takes writes; ") for line in lines)
    assert lines[-1] == "3 errors"
    assert max(map(len, lines)) <= 80


def test_for_programs_it_is_one_object(run: Run) -> None:
    told = json.loads(run("--json").stdout)
    assert told.keys() == {"healthy", "problems", "in_order", "not_looked_at"}
    [root] = told["problems"]
    assert tuple(root) == (
        "code", "severity", "fact", "cause", "remedy", "which", "since", "how_many", "follows"
    )  # fmt: skip
    assert (root["code"], [one["code"] for one in root["follows"]]) == ("no_workers", ["no_beat", "no_claims"])
    assert told["not_looked_at"] == []


def test_only_checks_for_one_code(run: Run) -> None:
    assert (run("--only", "index_missing").exit_code, run("--only", "index_missing").stdout.strip()) == (
        0, "Everything that was looked at is in order."
    )  # fmt: skip
    told = json.loads(run("--json", "--only", "no_claims", "--only", "no_beat").stdout)
    assert [(root["code"], [one["code"] for one in root["follows"]]) for root in told["problems"]] == [
        ("no_beat", ["no_claims"])
    ]  # fmt: skip
    assert told["in_order"] == {}


def test_subjects_that_could_not_be_checked_are_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://127.0.0.1:1/outbox")
    told = run("--json", "--only", "index_missing")
    assert told.exit_code == 1
    assert [problem["code"] for problem in json.loads(told.stdout)["problems"]] == ["database_away"]
    assert json.loads(told.stdout)["not_looked_at"] == ["Tables"]


def test_an_unknown_code_is_bad_usage(run: Run) -> None:
    refused = run("--only", "no_beet")
    assert refused.exit_code == 2
    assert "no_beat" in refused.output


def test_everything_away_is_a_problem_each(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://127.0.0.1:1/outbox")
    monkeypatch.setenv("OUTBOX_BROKER_URL", NOBODY)
    monkeypatch.setenv("OUTBOX_DESTINATIONS", json.dumps({"orders": {"url": "nats://127.0.0.1:1"}}))
    told = json.loads(run("--json").stdout)
    assert [problem["code"] for problem in told["problems"]] == ["database_away", "broker_away", "destination_away"]
    assert "Broker" not in told["in_order"]  # of what does not answer, nothing is known


def test_settings_that_contradict_each_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_BACKOFF_CAP", "0.5")
    told = run("--json")
    assert told.exit_code == 1
    [problem] = json.loads(told.stdout)["problems"]
    assert problem["code"] == "settings"
    assert "backoff_cap" in problem["fact"]


def test_a_check_that_fails_is_a_problem_and_stops_no_other(
    settings: MakeSettings, rows: Rows, engine: Engine, schema: str
) -> None:
    sql(engine, schema)("ALTER TABLE outbox_heartbeats RENAME TO elsewhere")
    seen = examine(settings(), deep=True)
    failed = [problem for problem in seen.everything if problem.code == "check_failed"]
    assert any("no_beat" in problem.cause for problem in failed)
    assert {"Database", "Broker", "Messages", "Destinations"} <= seen.in_order.keys()
