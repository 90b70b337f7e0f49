"""Whatever happens, in whatever order: the first deliveries of a key are in the order of its messages, nothing is lost,
nothing is stuck, a repetition has its cause on the row, and each row only makes the transitions of the protocol.

Hypothesis makes up histories against a real PostgreSQL: overlapping transactions, claims, workers that stand still or
die between begin, send and settle, a broker that refuses, loses, repeats and reorders tasks, sends that fail or whose
answer is lost, leases that expire, all or some of them, statements that a crash of the server undoes, supervised
tasks and their runs, dead letters, redrives and discards.
"""

from __future__ import annotations

import os
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from lab.trace import Trace
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows
from tests.integration.histories import Relay
from tests.integration.machine import LONG, Forgetful, Worker
from tests.supervised.tasks import supervised

STEPS = 80
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "20"))
"""Always the same histories, if nobody says how many."""

NO_MARGIN: dict[str, Any] = {
    "claims.HOUSEKEEPING_SECONDS": 0.0, "claims.FREED_LATELY": timedelta(0), "takes.FREED_LATELY": timedelta(0),
}  # fmt: skip
"""Each statement is committed at once, but what an application does; and a claim does all that it may do."""


@pytest.mark.timeout(900 + 5 * EXAMPLES)  # each of up to 80 steps, which are several transactions
def test_the_promises_hold_whatever_happens(
    new_store: MakeStore, rows: Rows, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    urls = {"orders": {"url": "redis+stream://localhost/0/x"}, "tasks": supervised(redis_url)["orders"]}
    destinations = {name: {**values, "max_attempts": 4} for name, values in urls.items()}
    # No time passes by itself: each wait and each lease is longer than the test.
    long = {"queue_lease": LONG, "backoff_base": 50}
    made = new_store(singles=3, breaker_failures=20, destinations=destinations, **long)
    for name, value in NO_MARGIN.items():
        monkeypatch.setattr(f"outbox_tasks.relay.store.{name}", value)
    with closing(Forgetful.connect(made.settings)) as store, closing(Store.connect(made.settings)) as other:
        store.takes._sizes = {"orders": (4, 2), "tasks": (4, 1)}
        monkeypatch.setattr("outbox_tasks.relay.store.processes.holder", lambda: f"here:{store.worker.number}")
        store.worker = Worker(0, store, {})
        trace = Trace(rows.engine, str(rows.tables.messages.schema))
        trace.install()
        run_state_machine_as_test(
            type("Here", (Relay,), {"store": store, "other": other, "rows": rows, "trace": trace}),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
