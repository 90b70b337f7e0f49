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
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from lab.trace import Trace
from outbox_tasks.model import Bundle
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.publishers import send
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.lanes import Lane
from tests.conftest import MakeStore, Rows
from tests.integration.histories import ACTIONS, Relay
from tests.integration.machine import LONG, Chance, Destination, Forgetful, Worker
from tests.integration.supervised import supervised
from tests.planted import planted

STEPS = 80
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "40"))
"""Always the same ones, if nobody says how many."""

spans = Lane.spans


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
    store.begun = set()
    monkeypatch.setattr("outbox_tasks.relay.store.processes.holder", lambda: f"here:{store.worker.number}")
    store.worker = Worker(0, store, {}, Bundle("orders", "", ()))
    trace = Trace(rows.engine, str(rows.tables.messages.schema))
    trace.install()
    other = Store.connect(made.settings)
    yield type("Here", (Relay,), {"store": store, "other": other, "rows": rows, "trace": trace})
    other.close()
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


@pytest.mark.timeout(900 + 5 * EXAMPLES)  # each of up to 80 steps, which are several transactions
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
        try:
            for _ in range(STEPS):
                getattr(history, chance.of(ACTIONS))(chance)
            history.teardown()
        finally:
            for connection in history.connections:
                connection.close()


BUGS: dict[str, tuple[int, str, str, str]] = {
    "a claim does not note that a send was never settled": (
        31, "claim/expire.sql", "WHEN ended.begun_at IS NOT NULL THEN 'unsettled'", "WHEN false THEN 'unsettled'",
    ),
    "a claim heeds no lease": (10, "claim/expire.sql", "locked_until <= now() AND", ""),
    "a begin heeds no lease": (1, "deliver/begin.sql", "AND l.locked_until > clock_timestamp()", ""),
    "a bundle begins twice": (1, "deliver/begin.sql", "l.begun_at IS NULL AND", ""),
    "a run begins twice": (1, "run/begin.sql", "r.state = 'handed over' AND", ""),
    "a claim takes keys that are leased": (15, "claim/look_keys.sql", "l.keys IS NOT NULL AND", "false AND"),
    "a claim takes keys that wait": (26, "claim/look_keys.sql", "w.key = k.key AND", "false AND"),
    "a claim takes keys that a dead letter blocks": (127, "claim/look_keys.sql", "d.key = k.key AND", "false AND"),
    "a claim takes keys of which a task runs": (17, "claim/look_keys.sql", "r.key = k.key AND", "false AND"),
    "a claim heeds no open transaction": (10, "claim/look_keys.sql", "SELECT min(floor)", "SELECT max(NULL::bigint)"),
    "what is sent frees no key": (17, "deliver/sent.sql", ":schema.outbox_free(destination, keys)", "1"),
    "what ends otherwise frees no key": (23, "deliver/settle.sql", ":schema.outbox_free(destination, keys)", "1"),
    "a run frees no key": (33, "run/end.sql", ":schema.outbox_free(gone.destination, ARRAY[gone.key])", "1"),
}  # fmt: skip


@pytest.mark.parametrize(("first", "verb", "right", "wrong"), BUGS.values(), ids=BUGS)
def test_a_bug_planted_in_a_verb_is_found(
    first: int,
    verb: str,
    right: str,
    wrong: str,
    new_store: MakeStore,
    rows: Rows,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The history of this number shows it; or one of the next, if the machine has changed since."""
    here = machine(new_store, rows, redis_url, monkeypatch)
    with planted(verb, right, wrong), here as made, pytest.raises(AssertionError):
        histories(made, range(first, first + 60))


IN_PYTHON: dict[str, tuple[int, str, Any]] = {
    "a failure does not hold up what is behind it": (59, "relay.send.send_in_order", lambda _, *rest: send(*rest)),
    "a claim goes on after what was open": (4, "relay.store.lanes.Lane.spans", lambda lane: [*spans(lane)][-1:]),
    "a claim never goes back to what was open": (1, "relay.store.keyed._marks", lambda rows: set()),
}


@pytest.mark.parametrize(("first", "place", "wrong"), IN_PYTHON.values(), ids=IN_PYTHON)
def test_a_bug_planted_in_python_is_found(
    first: int,
    place: str,
    wrong: Any,
    new_store: MakeStore,
    rows: Rows,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    ("answer", "move", "code"),
    [
        ("sent", "sent or discarded", None),
        ("discarded", "sent or discarded", "ignored"),
        ("dead", "dead", "no"),
        ("outage", "later", "away"),
        ("retry", "retry, short", "busy"),
    ],
)
def test_a_settle_is_a_known_move_though_a_crash_has_undone_its_begin(
    answer: str,
    move: str,
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
        found = here.trace.check()
        assert not found.wrong, str(found)
        undone = Counter(["publish", "take", "begin", "settle: retry, short"])  # a begun message is leased again
        assert found.counts == undone + Counter([f"settle: {move}"])
        [row] = rows.hot() or rows.archived()
        assert row.last_error_code == code


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
