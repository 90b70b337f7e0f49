"""What the monitor answers over HTTP: whether a worker is alive and ready, and metrics; and that what is written about
metrics is about those that there are."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from celery import Celery
from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from outbox_tasks.errors import PortTaken
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.local.relay import outbox_tasks_argv
from outbox_tasks.operating import limits
from outbox_tasks.operating.problems import Connections, examine
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.metrics import database_registry
from outbox_tasks.telemetry.metrics.workers import WorkerMetrics
from outbox_tasks.telemetry.monitor import Monitor, MonitorStep, of_worker, standalone
from outbox_tasks.worker.resources import Resources
from tests.conftest import MakeSettings, MakeStore, Rows, eventually, seconds_from_now
from tests.exposed import ROOT, Described, Samples, described, documented, samples
from tests.integration.conftest import environment
from tests.integration.doctoring import beats


@contextmanager
def answering(settings: Settings, pages: Any) -> Iterator[httpx.Client]:
    monitor = Monitor(settings.replace(monitor_port=0), pages)
    monitor.start()
    try:
        with httpx.Client(base_url=monitor.url, timeout=60, headers={"connection": "close"}) as client:
            yield client
    finally:
        monitor.stop()


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a broker that takes connections, and says nothing."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield f"redis://{LOOPBACK}:{server.getsockname()[1]}/0"


def test_a_worker_is_dead_if_its_loop_hangs_but_not_if_its_broker_is_down(
    settings: MakeSettings, rows: Rows, silent: str
) -> None:
    """A new worker would not find a broker that is down either."""

    def findings(broker: str, ticked: float, connected: bool) -> list[tuple[int, int]]:
        """The status, and how many findings, of /livez and /readyz."""
        with Celery("relay", broker=broker, set_as_current=False) as app:
            resources = Resources(app, settings())
            resources.liveness.start(solo=False)
            resources.liveness.connected, resources.liveness._ticked = connected, time.monotonic() - ticked
            with answering(settings(), of_worker(resources)) as client:
                answers = [client.get(f"/{page}") for page in ("livez", "readyz")]
        return [(answer.status_code, len(answer.json()["findings"])) for answer in answers]

    down = f"redis://{LOOPBACK}:{free_port()}/0"
    assert findings(silent, 0.0, connected=True) == [(200, 0), (200, 0)]
    assert findings(silent, 31.0, connected=True) == [(503, 1), (503, 1)]
    assert findings(silent, 1.0, connected=False) == [(200, 0), (503, 1)]
    assert findings(silent, 31.0, connected=False) == [(503, 1), (503, 1)]
    assert findings(down, 31.0, connected=False) == [(200, 0), (503, 1)]


def test_without_a_worker_it_answers_for_the_database_and_the_broker(
    settings: MakeSettings, rows: Rows, tmp_path: Path
) -> None:
    nobody, there = free_port(), settings()
    away = settings(
        database_url=f"postgresql://me:secret@{LOOPBACK}:{nobody}/x", broker_url=f"redis://{LOOPBACK}:{nobody}/0"
    )

    def check(client: httpx.Client, *, is_away: bool) -> None:
        assert client.get("/livez").json() == {"ok": True, "findings": []}
        ready, metrics = client.get("/readyz"), client.get("/metrics")
        assert (ready.status_code, len(ready.json()["findings"])) == ((503, 2) if is_away else (200, 0))
        assert "secret" not in ready.text
        assert (metrics.status_code, 'code="database_away"' in metrics.text) == (200, is_away)
        assert ("outbox_due" in metrics.text) is not is_away
        assert client.get("/other").status_code == 404

    with answering(away, standalone(away)) as client:
        check(client, is_away=True)
    argv, env = outbox_tasks_argv("health", "--serve", "--port", "0"), environment(there, broker_url=there.broker_url)
    with Child.start("monitor", argv, env={**os.environ, **env}, log=tmp_path / "log") as child:
        answers = eventually(lambda: re.search(r"answers at (http://[^/]+)/", child.tail(5)))
        with httpx.Client(base_url=answers[1], timeout=60) as client:
            check(client, is_away=False)


def test_a_page_that_fails_is_an_error_without_its_text(settings: MakeSettings) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    with answering(settings(monitor_host="::1"), {"/metrics": broken}) as client:
        answer = client.get("/metrics")
    assert (answer.status_code, "secret" in answer.text) == (500, False)


def test_a_port_that_is_taken_is_an_error_at_the_start_and_a_forked_process_frees_it(settings: MakeSettings) -> None:
    monitor = Monitor(settings(monitor_port=0), {})
    port = monitor.server_port
    taken = settings(monitor_port=port)
    with pytest.raises(PortTaken, match=f"The monitor can't listen on {LOOPBACK}, port {port}: Address already in use"):
        Monitor(taken, {})
    with Celery("relay", broker="memory://", set_as_current=False) as app:
        vars(app)["outbox_relay"] = Resources(app, taken)
        with pytest.raises(SystemExit, match="outbox_tasks: The monitor can't listen"):
            MonitorStep.create(SimpleNamespace(), SimpleNamespace(app=app))  # type: ignore[arg-type]
    if not (pid := os.fork()):
        monitor.close_inherited()
        os._exit(monitor.socket.fileno() != -1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    monitor.close_inherited()
    assert monitor.socket.fileno() != -1
    monitor.stop()


RULES = ROOT / "examples" / "monitoring" / "alert-rules.yml"
DASHBOARD = ROOT / "examples" / "monitoring" / "grafana-dashboard.json"


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
    limits.pause(store, "mails", "me", None)
    for name, kind, ago in (("a@host", "worker", 5), ("b@host", "worker", 500), ("claim", "claim", 2)):
        beats(rows, kind, ago, name)
    feeds = Feeds(store)
    feeds.take("eu", token := str(uuid4()))
    feeds.end("eu", token, lag=(1, 5.0))
    return store


def by(found: Samples, name: str, label: str, **labels: str) -> dict[str, float]:
    """The values of a metric with these labels, by another label."""
    return {have[label]: value for have, value in found[name] if labels.items() <= have.items()}


def test_messages_workers_and_problems_are_counted(busy: Store, rows: Rows) -> None:
    for n in range(3):
        rows.insert(2, destination=f"typo{n}", status="dead", dead_at=seconds_from_now(-5))
    found = samples(exposed(busy.settings))
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
    names = ("outbox_feed_copied", "outbox_feed_waiting", "outbox_feed_oldest_seconds")
    assert [by(found, name, "feed") for name in names] == [{"eu": 0}, {"eu": 1}, {"eu": pytest.approx(5, abs=60)}]
    problems = [(labels["code"], labels["which"], labels["severity"]) for labels, _ in found["outbox_problem"]]
    assert problems == [(each.code, each.which, each.severity) for each in examine(busy.settings).problems]
    counts = by(found, "outbox_problems", "severity")
    assert (counts.keys(), sum(counts.values())) == ({"error", "warning", "note"}, len(problems))


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
