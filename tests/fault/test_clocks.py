"""The hosts' clocks are minutes apart. Leases keep to the database's; nothing else may depend on any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.soak.faults.kind import FAKETIME
from lab.soak.faults.processes import other_clock
from outbox_tasks.local.commands import claim_worker_argv, publish_worker_argv
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually
from tests.fault.conftest import CALM, check, drained

MANY = 300


@pytest.fixture
def values(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, **CALM}


pytestmark = pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed (the Debian package faketime)")


def with_clock(relay: Relay, place: Path, argv: Sequence[str], **clock: str) -> list[str]:
    """The command, with another time of day."""
    changed = other_clock(place, **clock)
    changed["PYTHONPATH"] = f"{place}:{relay.env()['PYTHONPATH']}"
    return ["env", *(f"{name}={value}" for name, value in changed.items()), *argv]


def test_hosts_whose_clocks_are_minutes_apart_deliver_without_a_lease_that_runs_out(
    relay: Relay, rows: Rows, stream: Stream, tmp_path: Path
) -> None:
    def at(clock: str, argv: Sequence[str]) -> list[str]:
        return with_clock(relay, tmp_path, argv, FAKETIME=clock)

    relay.worker(at("-300s", claim_worker_argv()))
    right = relay.publish(1)
    ahead = relay.worker(at("+300s", [*publish_worker_argv(2), "-B"]))
    relay.ready()
    ids = rows.insert(MANY)
    fail_once = json.dumps({"fail": 1}).encode()
    for _ in range(3):
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
