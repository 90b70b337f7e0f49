"""Whatever happens, in whatever order: the first deliveries of a key are in the order of its messages, nothing is lost,
nothing is stuck, a repetition has its cause on the row, and each row only makes the transitions of the protocol.

Hypothesis makes up histories against a real PostgreSQL: overlapping transactions, claims, workers that stand still or
die between begin, send and settle, a broker that refuses, loses, repeats and reorders tasks, sends that fail or whose
answer is lost, leases that expire, all or some of a bundle, statements that a crash of the server undoes, supervised
tasks and their runs, dead letters, redrives and discards.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import false

from lab.trace import Trace
from outbox_tasks.database.pieces import held, pending
from outbox_tasks.model import Bundle
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.send import send
from tests.conftest import MakeStore, Rows
from tests.integration.histories import ACTIONS, BY_HAND, Relay
from tests.integration.machine import LONG, Chance, Destination, Forgetful, Worker
from tests.integration.supervised import supervised

STEPS = 50
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "40"))
"""Always the same ones, if nobody says how many."""


@contextmanager
def machine(new_store: MakeStore, rows: Rows, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Relay]]:
    """The machine over the tables of a test."""
    urls = {"orders": {"url": "redis+stream://localhost/0/x"}, "tasks": supervised(redis_url)["orders"]}
    # So many sends at once that none waits for another that stands still.
    destinations = {name: {**values, "max_attempts": 4, "concurrency": 50} for name, values in urls.items()}
    # No time passes by itself: each wait and each lease is longer than the test.
    long = {"queue_lease": LONG, "backoff_base": 50}
    made = new_store(bundle_size=3, max_in_flight=100, breaker_failures=20, destinations=destinations, **long)
    store = Forgetful.connect(made.settings)
    store.rows_of_test = rows
    monkeypatch.setattr("outbox_tasks.relay.store.processes.holder", lambda: f"here:{store.worker.number}")
    store.worker = Worker(0, store, {}, Bundle("orders", "", ()))
    trace = Trace(rows.engine, str(rows.tables.messages.schema))
    trace.install()
    yield type("Here", (Relay,), {"store": store, "rows": rows, "trace": trace})
    store.close()


def run(here: type[Relay], examples: int) -> None:
    run_state_machine_as_test(
        here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900 + 5 * EXAMPLES)  # each of up to 50 steps, which are several transactions
def test_the_promises_hold_whatever_happens(
    new_store: MakeStore, rows: Rows, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(new_store, rows, redis_url, monkeypatch) as here:
        run(here, EXAMPLES)


def histories(here: type[Relay], numbers: Iterable[int]) -> None:
    """Histories that these numbers stand for."""
    for number in numbers:
        chance = Chance(random.Random(number).randrange)
        history = here()
        history.start_anew()
        for _ in range(STEPS):
            getattr(history, chance.of(ACTIONS))(chance)
        history.teardown()


BUGS: dict[str, tuple[int, str, Any]] = {
    "a settle looks for the id alone": (16, "database.settle.begun_once", lambda t, ticket: held(t, ticket)[:1]),
    "a release looks for the id alone": (10, "database.begin.held", lambda t, ticket: held(t, ticket)[:1]),
    "a claim does not note that a send was never settled": (4, "database.claim.is_unsettled", lambda m: false()),
    "a claim heeds no lease": (0, "database.claim.is_due", lambda m: (pending(m),)),
    "a failure does not hold up what is behind it": (24, "relay.send.send_in_order", lambda _, *rest: send(*rest)),
    "what was not begun does not hold up what is behind it": (
        17, "relay.send._safe_to_send", lambda bundle, begun: [*begun.values()],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "place", "wrong"), BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found(
    first: int,
    place: str,
    wrong: Any,
    new_store: MakeStore,
    rows: Rows,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The history of this number shows it; or one of the next, if the machine has changed since."""
    monkeypatch.setattr(f"outbox_tasks.{place}", wrong)
    with machine(new_store, rows, redis_url, monkeypatch) as here, pytest.raises(AssertionError):
        histories(here, range(first, first + 60))


def test_a_message_that_two_sent_says_so_whoever_settles_it(
    new_store: MakeStore, rows: Rows, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash undoes the begin of one, so the other one can begin the same task. The first one settles first."""
    with machine(new_store, rows, redis_url, monkeypatch) as here:
        store, orders = here.store, Destination()
        bundles: list[Bundle] = []
        rows.insert()
        claim(store, bundles.extend, lambda: 0)
        one, other = (Worker(n, store, {"orders": orders}, bundles[0]) for n in (1, 2))
        store.begin_is_lost = True
        one.go_on()
        store.begin_is_lost = False
        other.go_on()
        one.finish()
        other.finish()
        [row] = rows.archived()
        assert len(orders.arrived) == 2
        assert (row.state, row.last_error_code) == ("sent", "unsettled")


@pytest.mark.parametrize(
    ("answer", "change", "code"),
    [
        ("sent", "sent", None),
        ("discarded", "end", "ignored"),
        ("dead", "end", "no"),
        ("outage", "release", "away"),
        ("retry", "retry or hand over", "busy"),
    ],
)
def test_a_settle_is_a_known_change_though_a_crash_has_undone_its_begin(
    answer: str,
    change: str,
    code: str | None,
    new_store: MakeStore,
    rows: Rows,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a dead letter says why it died."""
    with machine(new_store, rows, redis_url, monkeypatch) as here:
        bundles: list[Bundle] = []
        rows.insert()
        claim(here.store, bundles.extend, lambda: 0)
        worker = Worker(1, here.store, {"orders": Destination()}, bundles[0])
        here.store.begin_is_lost = True
        worker.go_on()
        worker.finish([answer])
        found = here.trace.check(*BY_HAND)
        assert not found.wrong, str(found)
        assert found.counts[f"{change}, begin undone"] == 1
        [row] = rows.hot() or rows.archived()
        assert row.last_error_code == code


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
