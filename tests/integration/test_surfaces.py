"""`status`, `health`, the doctor, the page, alerts and metrics show one list of problems, in the same words."""

from __future__ import annotations

import json
import re
import socket
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import generate_latest
from sqlalchemy import Engine, update

from outbox_tasks.operating import limits
from outbox_tasks.operating.problems import Connections, Problem, examine
from outbox_tasks.relay.store import Store
from outbox_tasks.telemetry.alerts import compared
from outbox_tasks.telemetry.metrics import database_registry
from outbox_tasks.web import Role
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.exposed import samples
from tests.integration.browsing import Visit
from tests.integration.conftest import Command
from tests.integration.doctoring import at_work, beats, sql

AWAY = "postgresql://127.0.0.1:1/outbox"


def same(problem: Problem, text: str) -> bool:
    """Whether the text has the fact. Its ages are those of another moment."""
    pattern = r"[0-9,.]+".join(map(re.escape, re.split(r"[0-9][0-9,.]*(?= (?:s|min|h|d)\b)", problem.fact)))
    return re.search(pattern, text) is not None


def test_each_root_cause_stands_everywhere(store: Store, rows: Rows, command: Command, visit: Visit) -> None:
    at_work(rows)
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
    with rows.engine.begin() as connection:
        times = {"opened_at": seconds_from_now(-600), "pause_until": seconds_from_now(600)}
        connection.execute(update(rows.tables.destinations).values(**times))
    rows.insert(3, locked_until=seconds_from_now(-500))
    rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_400")
    roots = [problem for problem in examine(store.settings).problems if problem.code != "broker_unknown"]
    assert [problem.code for problem in roots] == ["breaker_open", "dead_letters"]
    texts = {name: command(name).stdout for name in ("status", "health", "doctor")}
    browser = visit(Role.LOOK)
    texts |= {path: browser.text(path) for path in ("/", "/destinations/orders")}
    with closing(Connections(store.settings)) as connections:
        exposed = samples(generate_latest(database_registry(connections)))["outbox_problem"]
    alerts = compared(store, examine(store.settings))
    for root in roots:
        assert [name for name, text in texts.items() if not same(root, text)] == []
        for name in ("status", "health", "doctor"):
            assert root.code in [each["code"] for each in json.loads(command(name, "--json").stdout)["problems"]]
        assert [row.code for row in alerts if same(root, row.fact)] == [root.code]
        assert ({"code": root.code, "which": root.which, "severity": root.severity.value}, 1.0) in exposed


def test_of_many_destinations_with_one_problem_each_page_says_its_own(store: Store, rows: Rows, visit: Visit) -> None:
    names = [f"d{number:02}" for number in range(15)]
    for name in names:
        limits.pause(store, name, "jo", "moving house")
    places = {name: {"url": "a://b"} for name in names}
    many = store.settings.replace(destinations=places, broker_url=None)
    listed = {problem.which for problem in examine(many).problems if problem.code == "paused"}
    [unlisted, *_] = sorted({*names} - listed)
    assert f"{unlisted} has been paused for" in visit(destinations=places).text(f"/destinations/{unlisted}")


@pytest.fixture
def run(command: Command, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`outbox-tasks` on a narrow terminal, with a broker."""
    monkeypatch.setenv("OUTBOX_BROKER_URL", broker_url)
    monkeypatch.setenv("COLUMNS", "80")
    return command


class TestHealth:
    def test_fails_only_by_an_error(self, run: Command, store: Store, rows: Rows) -> None:
        at_work(rows)
        fine = run("health")
        assert (fine.exit_code, fine.stdout) == (0, "✓ in order\n")
        assert json.loads(run("health", "--json").stdout) == {"ok": True, "problems": []}
        rows.insert(1, status="dead", dead_at=seconds_from_now(-60))
        limits.pause(store, "orders", "jo", None)
        warned = run("health")
        assert (warned.exit_code, [line[0] for line in warned.stdout.splitlines()]) == (0, ["!", "i"])
        beats(rows, "claim", 99)
        beats(rows, "worker", 90, "claim@here", queues=["outbox.claim"])
        beats(rows, "worker", 1, "other@here", queues=["outbox.maintain"])
        wrong = run("health")
        assert wrong.exit_code == 1
        late = r"✗ No worker serves outbox\.claim: .* was last seen \d+ s ago\.\n  so: A claim last ran \d+ s ago\."
        assert re.match(late, wrong.stdout)
        seen: dict[str, Any] = json.loads(run("health", "--json").stdout)
        assert not seen["ok"]
        assert [(root["code"], [one["code"] for one in root["follows"]]) for root in seen["problems"]] == [
            ("no_workers", ["no_claims"]), ("dead_letters", []), ("paused", [])
        ]  # fmt: skip

    def test_of_one_worker_whose_name_has_percent_h_for_this_host(self, run: Command, rows: Rows) -> None:
        lost = run("health", "--worker", "own@%h")
        assert (lost.exit_code, lost.stdout.count("\n")) == (1, 1)
        beats(rows, "worker", 1, f"own@{socket.gethostname()}")
        assert run("health", "--worker", "own@%h").exit_code == 0


class TestTheDoctor:
    def test_says_cause_remedies_what_follows_and_what_is_in_order(self, run: Command) -> None:
        seen = run("doctor")
        lines = seen.stdout.splitlines()
        assert (seen.exit_code, lines[-1], max(map(len, lines)) <= 80) == (1, "3 errors", True)
        assert lines[0].startswith("✗ No worker serves outbox.claim, outbox.publish, outbox.drain, outbox.maintain:")
        assert "    → celery -A outbox_tasks worker -Q outbox.claim,outbox.maintain -n claim@%h" in lines
        assert "    so: Beat has never ticked here." in lines
        assert any(line.startswith("Database: it answers and takes writes; ") for line in lines)
        assert "Feeds" not in seen.stdout  # there are none
        facts = json.loads(run("doctor", "--json").stdout)
        assert facts.keys() == {"healthy", "problems", "in_order", "not_looked_at"}
        [root] = facts["problems"]
        assert tuple(root) == (
            "code", "severity", "fact", "cause", "remedy", "which", "since", "how_many", "follows"
        )  # fmt: skip
        assert (root["code"], [one["code"] for one in root["follows"]]) == ("no_workers", ["no_beat", "no_claims"])
        assert facts["not_looked_at"] == []

    def test_looks_for_some_codes_alone(self, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        fine = run("doctor", "--only", "index_missing")
        assert (fine.exit_code, fine.stdout.strip()) == (0, "Everything that was looked at is in order.")
        facts = json.loads(run("doctor", "--json", "--only", "no_claims", "--only", "no_beat").stdout)
        assert [(root["code"], [one["code"] for one in root["follows"]]) for root in facts["problems"]] == [
            ("no_beat", ["no_claims"])
        ]  # fmt: skip
        assert facts["in_order"] == {}
        mistyped = run("doctor", "--only", "no_beet")
        assert (mistyped.exit_code, "no_beat" in mistyped.output) == (2, True)
        monkeypatch.setenv("OUTBOX_DATABASE_URL", AWAY)
        facts = json.loads(run("doctor", "--json", "--only", "index_missing").stdout)
        assert [problem["code"] for problem in facts["problems"]] == ["database_away"]
        assert facts["not_looked_at"] == ["Tables"]

    def test_names_settings_that_contradict_each_other(self, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUTBOX_BACKOFF_CAP", "0.5")
        refused = run("doctor", "--json")
        [problem] = json.loads(refused.stdout)["problems"]
        assert (refused.exit_code, problem["code"], "backoff_cap" in problem["fact"]) == (1, "settings", True)


def test_a_check_that_fails_is_a_problem_and_stops_no_other(
    settings: MakeSettings, rows: Rows, engine: Engine, schema: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"LOCK TABLE {schema}.outbox_versions")
        assert "check_failed" in {problem.code for problem in examine(settings(statement_timeout=0.1)).problems}
    sql(engine, schema)("ALTER TABLE outbox_heartbeats RENAME TO elsewhere")
    seen = examine(settings(), deep=True)
    failed = [problem for problem in seen.everything if problem.code == "check_failed"]
    assert any("no_beat" in problem.cause for problem in failed)
    assert {"Database", "Broker", "Messages", "Destinations"} <= seen.in_order.keys()
