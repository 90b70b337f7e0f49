"""The command, as people and programs use it, whatever is away."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine

from outbox_tasks.cli import outbox
from outbox_tasks.operating.problems import CODES, checks, examine
from outbox_tasks.operating.problems.site import Site
from tests.conftest import MakeSettings, Rows, Stream
from tests.integration.doctoring import NOBODY

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


def test_what_is_found_is_grouped_with_its_remedy(run: Run) -> None:
    told = run()
    assert told.exit_code == 1
    assert [line for line in told.stdout.splitlines() if line and line[0] != " "] == [
        "Database", "Tables", "Transactions of others", "Broker", "Workers", "Messages", "Destinations", "6 errors"
    ]  # fmt: skip
    assert "  error no_beat\n    Beat has never ticked here.\n" in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80


def test_for_programs_it_is_one_object(run: Run) -> None:
    said = json.loads(run("--json").stdout)
    assert said.keys() == {"healthy", "findings", "in_order", "not_looked_at"}
    assert {tuple(finding) for finding in said["findings"]} == {
        ("subject", "code", "severity", "fact", "cause", "remedy")
    }
    assert "no_workers" in {finding["code"] for finding in said["findings"]}
    assert said["not_looked_at"] == []


def test_only_checks_for_one_code(run: Run) -> None:
    assert (run("--only", "index_missing").exit_code, run("--only", "index_missing").stdout) == (
        0, "Everything that was looked at is in order.\n"
    )  # fmt: skip
    said = json.loads(run("--json", "--only", "no_beat", "--only", "no_claims").stdout)
    assert [finding["code"] for finding in said["findings"]] == ["no_beat", "no_claims"]
    assert said["in_order"] == []


def test_subjects_that_could_not_be_checked_are_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://127.0.0.1:1/outbox")
    told = run("--json", "--only", "index_missing")
    assert told.exit_code == 1
    assert [finding["code"] for finding in json.loads(told.stdout)["findings"]] == ["database_away"]
    assert json.loads(told.stdout)["not_looked_at"] == ["Tables"]


def test_an_unknown_code_is_bad_usage(run: Run) -> None:
    refused = run("--only", "no_beet")
    assert refused.exit_code == 2
    assert "no_beat" in refused.output


def test_everything_away_is_a_finding_each_and_takes_some_seconds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://127.0.0.1:1/outbox")
    monkeypatch.setenv("OUTBOX_BROKER_URL", NOBODY)
    monkeypatch.setenv("OUTBOX_DESTINATIONS", json.dumps({"orders": {"url": "nats://127.0.0.1:1"}}))
    said = json.loads(run("--json").stdout)
    assert [finding["code"] for finding in said["findings"]] == ["database_away", "broker_away", "destination_away"]


def test_settings_that_contradict_each_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_BACKOFF_CAP", "0.5")
    told = run("--json")
    assert told.exit_code == 1
    [finding] = json.loads(told.stdout)["findings"]
    assert (finding["code"], finding["subject"]) == ("settings", "Settings")
    assert "backoff_cap" in finding["fact"]


def test_a_check_that_fails_is_a_finding_and_stops_no_other(
    settings: MakeSettings, rows: Rows, engine: Engine, schema: str
) -> None:
    """A view in the place of a table: what its index is asked is not what is expected."""
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {schema}.outbox_heartbeats RENAME TO elsewhere")
    seen = examine(settings())
    failed = [finding for finding in seen.everything if finding.code == "check_failed"]
    assert failed
    assert any("no_beat" in finding.cause for finding in failed)
    assert "dead_letters" not in {finding.code for finding in seen.everything}
    # no destination takes tasks, and there are no feeds
    assert {part.subject for part in seen.parts} == {*checks.SUBJECTS} - {checks.TASKS, checks.FEEDS}


def test_every_check_can_be_asked_for(settings: MakeSettings) -> None:
    site = Site(settings())
    site.close()
    assert {code for check in checks.CHECKS for code in check.codes} | {checks.CHECK_FAILED} == CODES
