"""How the database stands, for Prometheus; and that what is written about metrics is about those that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase
from sqlalchemy import insert

from outbox_tasks.feeds.store import Feeds
from outbox_tasks.operating import pauses
from outbox_tasks.operating.problems import Connections, examine
from outbox_tasks.relay.claim import Pace, claim
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.metrics import database_registry
from outbox_tasks.telemetry.metrics.workers import WorkerMetrics
from tests.claims import keep_house
from tests.conftest import MakeStore, Rows, seconds_from_now
from tests.exposed import ROOT, Described, Samples, described, documented, samples

RULES = ROOT / "examples" / "monitoring" / "alert-rules.yml"
DASHBOARD = ROOT / "examples" / "monitoring" / "grafana-dashboard.json"

LEASE = UUID(int=7)

Measure = Callable[[], Samples]


@pytest.fixture
def store(new_store: MakeStore) -> Store:
    return new_store(
        destinations={"orders": {"url": "a://b"}, "mails": {"url": "a://b"}},
        feeds={"eu": {"url": "sqlite:////no/such/file.db"}},
    )


def exposed(settings: Settings) -> bytes:
    with closing(Connections(settings)) as connections:
        return generate_latest(database_registry(connections))


@pytest.fixture
def measure(store: Store) -> Measure:
    return lambda: samples(exposed(store.settings))


@pytest.fixture
def busy(store: Store, rows: Rows) -> Store:
    """An outbox of which there is everything to tell."""
    rows.insert(3, locked_until=seconds_from_now(-90))
    rows.insert(2, locked_until=seconds_from_now(600))
    rows.insert(4, destination="mails", status="dead", dead_at=seconds_from_now(-5))
    rows.insert(1, destination="mails", key="k", status="dead", dead_at=seconds_from_now(-5))
    rows.insert(1, destination="mails", key="k")
    rows.insert(
        1, destination="mails", handed_at=seconds_from_now(-5), lease=uuid4(), locked_until=seconds_from_now(60)
    )
    pauses.pause(store, "mails", "me", None)
    now, t = datetime.now(UTC), rows.tables
    with rows.engine.begin() as connection:
        for name, kind, ago in (("a@host", "worker", 5), ("b@host", "worker", 500), ("claim", "claim", 2)):
            seen = now - timedelta(seconds=ago)
            connection.execute(insert(t.heartbeats).values(name=name, kind=kind, seen_at=seen, facts={}))
    feeds = Feeds(store)
    feeds.take("eu", token := str(uuid4()))
    feeds.end("eu", token, lag=(1, 5.0))
    return store


def by(found: Samples, name: str, label: str, **labels: str) -> dict[str, float]:
    """The values of a metric with these labels, by another label."""
    return {have[label]: value for have, value in found[name] if labels.items() <= have.items()}


def test_messages_workers_and_problems_are_counted(busy: Store, rows: Rows, measure: Measure) -> None:
    for n in range(3):
        rows.insert(2, destination=f"typo{n}", status="dead", dead_at=seconds_from_now(-5))
    found = measure()
    assert by(found, "outbox_rows", "state", destination="orders") == {
        "pending": 3, "scheduled": 2, "leased": 0, "handed over": 0, "running": 0, "retrying": 0, "dead": 0,
    }  # fmt: skip
    # Destinations that are not configured are counted together.
    assert by(found, "outbox_rows", "destination", state="dead") == {"orders": 0, "mails": 5, "": 6}
    assert by(found, "outbox_due", "destination")["orders"] == 3
    assert by(found, "outbox_keys_held_up", "destination") == {"orders": 0, "mails": 1, "": 0}
    oldest = by(found, "outbox_oldest_due_seconds", "destination")
    assert 90 <= oldest["orders"] < 150
    assert oldest["mails"] == 0  # what waits behind a dead message is not due
    assert found["outbox_workers"] == [({}, 1)]  # those that are alive
    problems = [(labels["code"], labels["which"], labels["severity"]) for labels, _ in found["outbox_problem"]]
    assert problems == [(each.code, each.which, each.severity) for each in examine(busy.settings).problems]
    counts = by(found, "outbox_problems", "severity")
    assert (counts.keys(), sum(counts.values())) == ({"error", "warning", "note"}, len(problems))


def test_a_database_that_is_away_is_a_problem_and_not_a_failed_scrape(store: Store) -> None:
    found = samples(exposed(store.settings.replace(database_url="postgresql://me@127.0.0.1:1/x")))
    assert by(found, "outbox_problem", "code")["database_away"] == 1
    assert "outbox_due" not in found


def test_a_claim_tells_of_leases_that_ran_out_and_why(store: Store, rows: Rows) -> None:
    causes: list[tuple[dict[str, object], str | None]] = [
        ({}, None),
        ({"lease": LEASE, "locked_by": "worker-1"}, "lease_expired"),
        ({"lease": LEASE, "locked_by": "worker-1", "last_error_code": "timeout", "attempts": 1}, "lease_expired"),
        ({"lease": LEASE, "begun": True, "attempts": 1, "key": "k"}, "unsettled"),
        # It was given back since then: that is told once.
        ({"last_error_code": "unsettled", "attempts": 1}, None),
    ]
    for columns, cause in causes:
        rows.clear()
        rows.insert(1, **columns)
        keep_house(store)  # at once, and not as seldom as a claim does
        tally = claim(store, lambda singles, drains: None, lambda: 0, Pace())
        assert tally.expired == ({} if cause is None else {("orders", cause): 1}), columns


def of_workers() -> Described:
    """The metrics that a worker has, whether or not it has counted anything."""
    metrics = [metric for metric in vars(WorkerMetrics([])).values() if isinstance(metric, MetricWrapperBase)]
    found: Described = {}
    for metric in metrics:
        [family] = metric.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, frozenset(metric._labelnames))
    return found


def test_the_page_names_every_metric_and_no_other(busy: Store) -> None:
    assert documented("What workers count") == of_workers()
    assert documented("What the database says") == described(exposed(busy.settings))


def queried() -> dict[str, list[str]]:
    """The PromQL of the dashboard and the rules, by where it is."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in dashboard["panels"]}
    found["variables"] = [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]
    # Without a reader of YAML: in all of the file a name of ours can only be that of a metric.
    return {**found, "rules": RULES.read_text().splitlines()}


def test_the_dashboard_and_the_rules_ask_for_all_that_there_is_and_nothing_else() -> None:
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    metrics = documented("What workers count") | documented("What the database says")
    there = {name + part: labels for name, (kind, labels) in metrics.items() for part in parts.get(kind, ("",))}
    for place, queries in queried().items():
        asked = [found for query in queries for found in re.findall(r"\b(outbox_\w+)(?:\{([^}]*)\})?", query)]
        assert asked, f"{place} asks for nothing"
        for name, selectors in asked:
            assert name in there, f"{place}: there is no {name}"
            unknown = set(re.findall(r"(\w+)[=!]~?\"", selectors)) - there[name]
            assert not unknown, f"{place}: {name} has no label {unknown}"
    assert [name for name in metrics if name not in DASHBOARD.read_text() + RULES.read_text()] == []


def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (it comes with Prometheus)")
    for arguments in (
        ["check", "rules", str(RULES)],
        ["test", "rules", str(ROOT / "tests/integration/alert-rules-test.yml")],
    ):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
