"""What `outbox-tasks status` shows, and where it gets it from."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner, Result
from sqlalchemy import func, literal_column

from outbox_tasks.celery import install
from outbox_tasks.cli import outbox
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import pauses
from outbox_tasks.relay.claim import Tally
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.signals import claimed, settled
from outbox_tasks.telemetry.counters import MOST, Counters
from tests.conftest import Rows, eventually, seconds_from_now
from tests.contract.messages import message

Run = Callable[..., Result]
STARTED = "2026-01-01T00:00:00.000+00:00"


@pytest.fixture
def env(store: Store, postgres_url: str, broker_url: str, schema: str) -> dict[str, str]:
    return {
        "OUTBOX_DATABASE_URL": postgres_url,
        "OUTBOX_DATABASE_SCHEMA": schema,
        "OUTBOX_BROKER_URL": broker_url,
        "OUTBOX_DESTINATIONS": json.dumps({n: {"url": "a://b"} for n in ("orders", "[red]mails")}),
        "OUTBOX_CONFIG": os.devnull,
    }


@pytest.fixture
def run(env: dict[str, str]) -> Run:
    """Runs `outbox-tasks` with these arguments, over the test's tables, 80 columns wide."""
    return lambda *arguments, **more: CliRunner().invoke(outbox, arguments, env={"COLUMNS": "80", **env, **more})


def shown(run: Run, **more: str) -> Any:
    result = run("status", "--json", **more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def beat(rows: Rows, name: str = "publish@here", kind: str = "worker", ago: float = 1.0, **facts: Any) -> None:
    """A heartbeat, as if of a process."""
    h = rows.tables.heartbeats
    usual = {"queues": ["outbox.publish", "outbox.drain"], "pool": "prefork", "concurrency": 4, "started": STARTED}
    with rows.engine.begin() as connection:
        made = {"name": name, "kind": kind, "seen_at": seconds_from_now(-ago), "facts": {**usual, **facts}}
        connection.execute(h.insert().values(**made))


def test_what_is_wrong_comes_first_and_nothing_is_wider_than_the_terminal(
    run: Run, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.operating.overview.PAGES", 20)
    rows.insert(12_000)  # more than are counted, on more pages than are read
    rows.insert(3, destination="[red]mails", locked_until=seconds_from_now(-7200))
    rows.insert(2, status="dead", dead_at=seconds_from_now(-60))
    rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-60))
    rows.insert(2, key="a")
    beat(rows, ago=600)
    pauses.pause(store, "orders", "alice", "moving house")
    lines = run("status").stdout.splitlines()
    assert lines[0] == "✗ no worker consumes outbox.claim"
    assert lines[1] == "✗ no worker consumes outbox.publish: publish@here was last seen 10 min ago"
    assert "✗ [red]mails: the oldest message has been due for 2 h" in lines
    [titles] = [line for line in lines if line.startswith("destination ")]
    assert titles.split() == ["destination", "due", "leased", "retry", "later", "dead", "oldest", "/min", "/min"]
    [place] = [place for place, line in enumerate(lines) if line.startswith("orders   ")]
    orders = lines[place].split()
    assert orders[1].startswith("~")
    assert orders[5] == "3"
    assert lines[place + 1].strip() == "paused"
    assert any(line.startswith("orders is paused by alice since ") and "moving house" in line for line in lines)
    assert any(line.startswith("[red]mails ") for line in lines)
    assert any(line.startswith("! 3 dead letters wait for a person, the first for ") for line in lines)
    assert "orders has keys that a dead message holds up: 1; see `keys`" in lines
    assert any("lost, 10 min ago" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_programs_get_all_of_it(run: Run, rows: Rows) -> None:
    rows.insert(3)
    rows.insert(2, locked_until=seconds_from_now(60))
    beat(rows)
    beat(rows, "beat", "beat", ago=2)
    found = shown(run)
    assert {one["name"]: one["state"] for one in found["destinations"]} == {"orders": "closed", "[red]mails": "closed"}
    [orders] = [one for one in found["destinations"] if one["name"] == "orders"]
    assert {state: count for state, count in orders["states"].items() if count} == {"pending": 3, "scheduled": 2}
    assert (orders["due"], orders["estimated"]) == (3, [])
    assert [(one["name"], one["queues"]) for one in found["workers"]] == [
        ("publish@here", ["outbox.publish", "outbox.drain"])
    ]
    assert found["beat"]["age"] == pytest.approx(2, abs=20)
    assert found["claim"] is None
    assert found["queues"] == {"outbox.claim": 0, "outbox.publish": 0, "outbox.drain": 0, "outbox.maintain": 0}
    assert found["archived"] == {"count": 0, "estimated": False}
    assert {finding["code"] for finding in found["findings"]} == {"queue"}


def test_supervised_tasks_have_columns_of_their_own(run: Run, rows: Rows) -> None:
    assert "handed" not in run("status").stdout
    handed = {"lease": uuid4(), "handed_at": seconds_from_now(-5), "locked_until": seconds_from_now(60), "attempts": 1}
    rows.insert(3, **handed)
    [id] = rows.insert(1, **handed, begun=True, locked_by="shop@host:1:x")
    beat(rows, "shop@host (tasks)", "tasks", queues=["shop"])
    lines = run("status").stdout.splitlines()
    [titles] = [line.split() for line in lines if "handed" in line]
    [orders] = [line.split() for line in lines if line.startswith("orders ")]
    place = titles.index("runs")
    assert orders[place - 1 : place + 1] == ["3", "1"]
    assert any(line.startswith("shop@host (tasks) shop ") for line in lines)
    assert max(map(len, lines)) <= 80
    shown = " ".join(run("show", id).stdout.split())
    assert "state running" in shown
    assert "held by shop@host:1:x" in shown
    assert "handed at" in shown


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("broker", ["refuses", "is silent"])
def test_without_a_broker_the_rest_is_shown(run: Run, rows: Rows, broker: str, silent: int) -> None:
    rows.insert(3)
    url = f"redis://{LOOPBACK}:{free_port() if broker == 'refuses' else silent}/0"
    found = shown(run, OUTBOX_BROKER_URL=url)
    assert found["queues"] is None
    assert found["destinations"][1]["due"] == 3
    assert "queued: not known: the broker gave no answer" in run("status", OUTBOX_BROKER_URL=url).stdout


def test_a_broker_that_nobody_named_is_not_said_to_be_silent(run: Run, rows: Rows) -> None:
    """Where the relay is installed in an application, the broker is that one's."""
    assert "queued: not asked: OUTBOX_BROKER_URL is not set" in run("status", OUTBOX_BROKER_URL="").stdout


def test_of_an_installed_relay_the_application_s_broker_is_asked(
    env: dict[str, str], broker_url: str, rows: Rows
) -> None:
    with Celery("shop", broker=broker_url, set_as_current=False) as shop:
        values = {name.removeprefix("OUTBOX_").lower(): value for name, value in env.items()}
        install(shop, Settings(database_url=values["database_url"], database_schema=values["database_schema"]))
        bare = {"OUTBOX_DATABASE_URL": "", "OUTBOX_BROKER_URL": "", "OUTBOX_CONFIG": os.devnull}
        asked = CliRunner().invoke(outbox, ["status", "--json"], obj=SimpleNamespace(app=shop), env=bare)
        assert json.loads(asked.stdout)["queues"] == {
            "outbox.claim": 0,
            "outbox.publish": 0,
            "outbox.drain": 0,
            "outbox.maintain": 0,
        }


def test_nothing_is_in_order_above_a_destination_whose_circuit_is_open(
    run: Run, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.operating.health.judge", lambda settings, seen: iter(()))
    assert run("status").stdout.splitlines()[0] == "✓ in order"
    for _ in range(5):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
    assert run("status").stdout.splitlines()[0] == "! circuit open: orders"


OUTCOMES: list[tuple[dict[str, int], bool]] = [
    ({"dead": 12}, True), ({"retry": 3, "later": 2}, True), ({"dead": 40, "sent": 2}, True),
    ({"dead": 40, "sent": 3}, False), ({"dead": 4}, False), ({"outage": 12}, False), ({"sent": 9}, False),
]  # fmt: skip
"""What was counted of a destination, and whether it refuses everything."""


@pytest.mark.parametrize("ago", [0, 1800])
def test_a_destination_that_refuses_everything_is_not_in_service(run: Run, rows: Rows, ago: int) -> None:
    """Also half an hour after the last send."""
    minute = func.date_trunc("minute", func.now() - literal_column(f"interval '{ago} seconds'"))
    for outcomes, refuses in OUTCOMES:
        rows.clear()
        rows.insert(12, status="dead", dead_at=seconds_from_now(-130), last_error_code="http_422")
        retrying = rows.insert(1, attempts=3, last_error_code="http_500")
        rows.change(retrying, locked_until=seconds_from_now(60))
        with rows.engine.begin() as connection:
            connection.execute(rows.tables.tallies.delete())
            for outcome, count in outcomes.items():
                made = {"minute": minute, "destination": "orders", "outcome": outcome, "count": count}
                connection.execute(rows.tables.tallies.insert().values(**made))
        [orders] = [one for one in shown(run)["destinations"] if one["name"] == "orders"]
        assert (orders["state"] == "refuses") == refuses, outcomes
        assert ("✗ refuses everything: orders" in run("status").stdout.splitlines()) == refuses, outcomes
        if refuses:
            assert "orders refuses everything (http_422, http_500): " in orders["why"]
            assert "1 message waits, the oldest for " in orders["why"]
            assert "12 are dead, the first for 2 min" in orders["why"]
            rows.clear()
            assert shown(run)["destinations"][-1]["state"] == "closed"  # somebody has seen to it


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("as_json", [True, False])
def test_watching_ends_with_ctrl_c(env: dict[str, str], rows: Rows, as_json: bool) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "outbox_tasks", "status", "--watch", "0.2", *(["--json"] if as_json else [])]
    child = subprocess.Popen(argv, env={**os.environ, **env, "TERM": "xterm"}, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""

    def again() -> bool:
        nonlocal said
        said += os.read(ours, 65_536)
        return said.count(b"orders") >= 3

    eventually(again)
    child.send_signal(signal.SIGINT)
    while True:
        try:
            if not (more := os.read(ours, 65_536)):
                break
        except OSError:  # how a terminal says that nobody writes any more
            break
        said += more
    assert child.wait(60) == 0
    os.close(ours)
    assert b"Traceback" not in said
    assert b"Aborted" not in said


class TestCounters:
    @pytest.fixture
    def app(self) -> Iterator[Celery]:
        with Celery("t", set_as_current=False) as app:
            yield app

    @pytest.fixture
    def counters(self, store: Store, app: Celery) -> Iterator[Counters]:
        made = Counters(lambda: store)
        made.connect(app)
        yield made
        made.close()

    @staticmethod
    def counted(rows: Rows) -> dict[tuple[str, str], int]:
        found: Counter[tuple[str, str]] = Counter()
        with rows.engine.connect() as connection:
            for row in connection.execute(rows.tables.tallies.select()):
                found[row.destination, row.outcome] += row.count
        return dict(found)

    def test_outcomes_are_written_soon(self, counters: Counters, app: Celery, rows: Rows) -> None:
        steps = [Step.SENT] * 3 + [Step.RETRY, Step.DEAD, Step.STALE]
        verdicts = [Verdict(message(number), step) for number, step in enumerate(steps)]
        settled.send(sender=app, destination="orders", lease="x", verdicts=verdicts, seconds=0.1)
        expected = {("orders", "sent"): 3, ("orders", "retry"): 1, ("orders", "dead"): 1, ("orders", "stale"): 1}
        eventually(lambda: self.counted(rows) == expected)

    def test_counts_of_processes_add_up_and_show_as_rates(
        self, counters: Counters, store: Store, rows: Rows, run: Run
    ) -> None:
        other = Counters(lambda: store)
        for each in (counters, other, counters):
            each.count("orders", ["sent"] * 500 + ["later"] * 5)
            assert each.flush()
        assert self.counted(rows) == {("orders", "sent"): 1500, ("orders", "later"): 15}
        [orders] = [one for one in shown(run)["destinations"] if one["name"] == "orders"]
        assert 1500 / 5 <= orders["sent"] <= 1500 / 4
        assert 15 / 5 <= orders["failed"] <= 15 / 4

    def test_another_app_is_not_counted(self, counters: Counters, rows: Rows) -> None:
        with Celery("other", set_as_current=False) as other:
            claimed.send(sender=other, tally=Tally(singles=1), seconds=0.1)
        assert counters.flush()
        with rows.engine.connect() as connection:
            assert not connection.execute(rows.tables.heartbeats.select()).all()

    def test_a_claim_leaves_its_facts(self, counters: Counters, app: Celery, run: Run) -> None:
        tally = Tally(singles=7, drains=2, held_back=True, queued=300)
        tally.expired["orders", "lease_expired"] = 4
        claimed.send(sender=app, tally=tally, seconds=0.25)
        assert counters.flush()
        claim = shown(run)["claim"]
        assert (claim["claimed"], claim["drains"], claim["held_back"]) == (7, 2, True)
        assert (claim["waiting"], claim["seconds"]) == (300, 0.25)

    def test_counts_are_kept_while_the_database_is_away_up_to_a_bound(self, store: Store, rows: Rows) -> None:
        away = True

        def reach() -> Store:
            if away:
                raise DatabaseUnavailable(url="x", reason="it is away")
            return store

        counters = Counters(reach)
        counters.count("orders", ["sent"] * 3)
        assert not counters.flush()
        counters.count("orders", ["sent"])
        assert not counters.flush()
        away = False
        assert counters.flush()
        assert self.counted(rows) == {("orders", "sent"): 4}
        away = True
        for n in range(MOST + 10):
            counters.count(f"d{n}", ["sent"])
        assert not counters.flush()
        assert len(counters._own.get().counts) == MOST
        counters._own.get().counts.clear()
        counters.close()

    def test_a_forked_process_does_not_write_its_parents_counts(self, counters: Counters, rows: Rows) -> None:
        counters.count("orders", ["sent"])
        if not (pid := os.fork()):
            counters.count("mails", ["sent"])
            os._exit(len(counters._own.get().counts))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert counters.flush()
        assert self.counted(rows) == {("orders", "sent"): 1}


def test_after_a_drain_and_maintenance_without_workers(run: Run, store: Store, rows: Rows) -> None:
    """What these leave of themselves says less than what a worker's tasks do."""
    assert run("drain").exit_code == 0
    assert run("maintain").exit_code == 0
    result = run("status")
    assert result.exit_code == 0, result.output
    [last] = [line for line in result.stdout.splitlines() if line.startswith("last: ")]
    assert re.fullmatch(r"last: claim \d+ s ago · beat never · maintain \d+ s ago", last)


def test_every_command_is_told_in_one_line(run: Run) -> None:
    lines = run("--help").stdout.splitlines()
    assert len(lines) > 30
    assert not [line for line in lines[1:] if line.endswith("...")]
