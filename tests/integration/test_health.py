"""What the command `health` adds to the problems: exit codes, JSON, one worker."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outbox_tasks.cli import outbox
from outbox_tasks.operating import pauses
from outbox_tasks.relay.store import Store
from tests.conftest import Rows, seconds_from_now
from tests.integration.conftest import environment
from tests.integration.doctoring import at_work, beats

Run = Callable[..., Result]


@pytest.fixture
def run(store: Store, rows: Rows) -> Run:
    """Runs `outbox-tasks health` over a relay at work."""
    at_work(rows)
    env = environment(store.settings, broker_url=store.settings.broker_url)
    return lambda *arguments: CliRunner().invoke(outbox, ["health", *arguments], env=env)


def test_a_healthy_relay(run: Run) -> None:
    fine = run()
    assert (fine.exit_code, fine.stdout) == (0, "✓ in order\n")
    assert json.loads(run("--json").stdout) == {"ok": True, "problems": []}


def test_only_an_error_makes_it_fail(run: Run, store: Store, rows: Rows) -> None:
    rows.insert(1, status="dead", dead_at=seconds_from_now(-60))
    pauses.pause(store, "orders", "jo", None)
    warned = run()
    assert (warned.exit_code, [line[0] for line in warned.stdout.splitlines()]) == (0, ["!", "i"])
    beats(rows, "claim", 99)
    beats(rows, "worker", 90, "claim@here", queues=["outbox.claim"])
    beats(rows, "worker", 1, "other@here", queues=["outbox.maintain"])
    wrong = run()
    lines = wrong.stdout.splitlines()
    assert (wrong.exit_code, lines[:2]) == (1, [
        "✗ No worker serves outbox.claim: claim@here was last seen 90 s ago.", "  so: A claim last ran 99 s ago."
    ])  # fmt: skip
    told: dict[str, Any] = json.loads(run("--json").stdout)
    assert not told["ok"]
    assert [(root["code"], [one["code"] for one in root["follows"]]) for root in told["problems"]] == [
        ("no_workers", ["no_claims"]), ("dead_letters", []), ("paused", [])
    ]  # fmt: skip


def test_one_worker_whose_name_has_percent_h_for_this_host(run: Run, rows: Rows) -> None:
    lost = run("--worker", "own@%h")
    assert (lost.exit_code, lost.stdout.count("\n")) == (1, 1)
    beats(rows, "worker", 1, f"own@{socket.gethostname()}")
    assert run("--worker", "own@%h").exit_code == 0
