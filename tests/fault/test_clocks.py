"""The hosts' clocks are minutes apart. Leases keep to the database's; nothing else may depend on any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.local.commands import claim_worker_argv, publish_worker_argv
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import CALM, check, drained

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))

MANY = 300


@pytest.fixture
def values(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, **CALM}


SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
"""Python's own sleep fails under libfaketime where the monotonic clock is left alone, and waits for locks where not."""


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed (the Debian package faketime)")
def test_hosts_whose_clocks_are_minutes_apart_deliver_without_a_lease_that_runs_out(
    relay: Relay, rows: Rows, stream: Stream, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLEEP)
    path = f"PYTHONPATH={tmp_path}:{relay.env()['PYTHONPATH']}"

    def at(clock: str, argv: Sequence[str]) -> list[str]:
        """The command, with another time of day; how fast time passes stays the same."""
        faked = [f"LD_PRELOAD={FAKETIME[0]}", f"FAKETIME={clock}", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
        return ["env", path, *faked, *argv]

    relay.worker(at("-300s", claim_worker_argv()))
    right = relay.publish(1)
    ahead = relay.worker(at("+300s", [*publish_worker_argv(2), "-B"]))
    relay.ready()
    ids = rows.insert(MANY)
    fail_once = json.dumps({"fail": 1}).encode()
    for _ in range(3):  # in bundles of their own: of a larger one, more than a few that fail go back to the table
        pair = rows.insert(2, destination="told", payload=fail_once)
        eventually(lambda pair=pair: not [row for row in rows.hot() if str(row.id) in pair and not row.attempts])
        ids += pair

    def both_have_sent() -> bool:
        ids.extend(rows.insert(4))
        return all("sent " in worker.logs() for worker in (right, ahead))

    eventually(both_have_sent)
    drained(rows)
    assert check(rows, stream, ids) == 0
    ends = {(row.destination, row.attempts, row.last_error_code) for row in rows.archived()}
    assert ends == {("orders", 1, None), ("told", 2, "told")}
    assert "retry: Retry in" in right.logs() + ahead.logs()
