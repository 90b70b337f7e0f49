"""What `outbox-tasks status` shows, and where it gets it from."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from outbox_tasks.cli import outbox
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.operating import limits
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.worker.install import install
from tests.conftest import Rows, seconds_from_now
from tests.integration.doctoring import at_work, beats, tally

Run = Callable[..., Result]

EMPTY = dict.fromkeys(("outbox.claim", "outbox.publish", "outbox.drain", "outbox.maintain"), 0)
"""Nothing is queued."""


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


def test_what_is_wrong_comes_first_and_nothing_is_wider_than_the_terminal(
    run: Run, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.operating.overview.PAGES_SAMPLED", 20)
    rows.insert(12_000)  # more than are counted, on more pages than are read
    rows.insert(3, destination="[red]mails", locked_until=seconds_from_now(-7200))
    rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-60))
    rows.insert(2, key="a")
    at_work(rows)
    beats(rows, "worker", 600, "feeds@here", queues=["outbox.feed"])
    limits.pause(store, "orders", "alice", "moving house")
    tally(store, sent=60, later=2)
    lines = run("status").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    signs = [line for line in lines if line[:2] in ("✗ ", "! ", "i ")]
    assert signs[0] == "✗ [red]mails: the oldest message has been due for 2 h."
    assert [sign[0] for sign in signs] == ["✗", "!", "i"]
    assert "    so: orders: dead messages hold up 1 key." in lines
    assert "    → outbox-tasks resume orders" in lines
    [place] = [place for place, line in enumerate(lines) if line.startswith("orders   ")]
    orders = lines[place].split()
    assert (orders[1][0], orders[5], " 60 2 " in " ".join(orders)) == ("~", "1", True)
    assert lines[place + 1].strip() == "paused"
    assert any("lost, 10 min ago" in line for line in lines)
    assert "handed" not in " ".join(lines)  # only where there are supervised tasks


def test_programs_get_all_of_it_and_supervised_tasks_have_columns_of_their_own(run: Run, rows: Rows) -> None:
    rows.insert(3)
    rows.insert(2, locked_until=seconds_from_now(60))
    handed = {"lease": uuid4(), "handed_at": seconds_from_now(-5), "locked_until": seconds_from_now(60), "attempts": 1}
    rows.insert(3, **handed)
    [id] = rows.insert(1, **handed, begun=True, locked_by="shop@host:1:x")
    beats(rows, "worker", 1, "publish@here", queues=["outbox.publish", "outbox.drain"])
    beats(rows, "tasks", 1, "shop@host (tasks)", queues=["shop"])
    beats(rows, "beat", 2)
    found = shown(run)
    assert {one["name"]: one["state"] for one in found["destinations"]} == {"orders": "closed", "[red]mails": "closed"}
    [orders] = [one for one in found["destinations"] if one["name"] == "orders"]
    assert {state: count for state, count in orders["states"].items() if count} == {
        "pending": 3, "scheduled": 2, "handed over": 3, "running": 1,
    }  # fmt: skip
    assert (orders["due"], orders["estimated"]) == (3, [])
    assert [(one["name"], one["queues"]) for one in found["workers"]] == [
        ("publish@here", ["outbox.publish", "outbox.drain"]), ("shop@host (tasks)", ["shop"]),
    ]  # fmt: skip
    assert found["beat"]["age"] == pytest.approx(2, abs=20)
    assert (found["claim"], found["queues"]) == (None, EMPTY)
    assert found["archived"] == {"count": 0, "estimated": False}
    assert found["problems"][0]["code"] == "no_workers"
    lines = run("status").stdout.splitlines()
    [titles] = [line.split() for line in lines if "handed" in line]
    [cells] = [line.split() for line in lines if line.startswith("orders ")]
    place = titles.index("runs")
    assert cells[place - 1 : place + 1] == ["3", "1"]
    assert any(line.startswith("shop@host (tasks) shop ") for line in lines)
    of_one = " ".join(run("show", id).stdout.split())
    assert all(words in of_one for words in ("state running", "held by shop@host:1:x", "handed at"))


def test_of_an_outbox_without_database_only_the_problem_is_shown(run: Run) -> None:
    away = "postgresql://127.0.0.1:1/outbox"
    assert [problem["code"] for problem in shown(run, OUTBOX_DATABASE_URL=away)["problems"]] == ["database_away"]
    assert run("status", OUTBOX_DATABASE_URL=away).stdout.startswith("✗ The database postgresql://127.0.0.1:1/outbox ")


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_a_broker_the_rest_is_shown(run: Run, rows: Rows) -> None:
    rows.insert(3)
    with socket.create_server((LOOPBACK, 0)) as silent:
        url = f"redis://{LOOPBACK}:{silent.getsockname()[1]}/0"
        found = shown(run, OUTBOX_BROKER_URL=url)
    assert (found["queues"], found["destinations"][1]["due"]) == (None, 3)
    assert found["queues_unknown"] == "not known: the broker gave no answer"
    # Where the relay is installed in an application, the broker is that one's.
    assert "queued: not asked: OUTBOX_BROKER_URL is not set" in run("status", OUTBOX_BROKER_URL="").stdout


def test_of_an_installed_relay_the_application_s_broker_is_asked(store: Store, broker_url: str) -> None:
    with Celery("shop", broker=broker_url, set_as_current=False) as shop:
        place = {name: getattr(store.settings, name) for name in ("database_url", "database_schema")}
        install(shop, Settings(**place))
        bare = {"OUTBOX_DATABASE_URL": "", "OUTBOX_BROKER_URL": "", "OUTBOX_CONFIG": os.devnull}
        asked = CliRunner().invoke(outbox, ["status", "--json"], obj=SimpleNamespace(app=shop), env=bare)
        assert json.loads(asked.stdout)["queues"] == EMPTY
