"""Whatever happens, in whatever order: the first deliveries of a key are in the order of its messages, nothing is lost,
nothing is stuck, a repetition has its cause on the row, and each row only makes the transitions of the protocol.

Hypothesis makes up histories against a real PostgreSQL: overlapping transactions, claims, workers that stand still or
die between begin, send and settle, a broker that refuses, loses, repeats and reorders tasks, sends that fail or whose
answer is lost, leases that expire, all or some of them, dead letters, redrives and discards.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from greenlet import getcurrent, greenlet
from hypothesis import HealthCheck
from hypothesis import settings as search
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sqlalchemy import Connection, delete, text

from lab.trace import Trace
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.model import LeasedMessage, Outcome, Single, Slot, Step
from outbox_tasks.relay.claim import Pace, claim
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows
from tests.integration.acting import acted

EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "20"))
"""Always the same histories, if nobody says how many."""

KEYS = ("a", "a", "b", None)
LONG = 1000.0
"""Seconds: no lease and no wait ends by itself."""
ACTIONS = [
    *["write"] * 5, *["end"] * 5, *["claim"] * 6, *["start"] * 4, *["go_on"] * 8, *["deliver"] * 6, *["die"] * 3,
    *["broker_loses"] * 2, "time_passes", "some_leases_expire", "recall", "redrive", "discard", "try_now",
    *["cancel"] * 2,
]  # fmt: skip
OUTCOMES = {
    "sent": Outcome.sent(),
    "retry": Outcome.retry("busy", "later"),
    "outage": Outcome.outage("away", "gone"),
    "dead": Outcome.dead("no", "no"),
    "unheard": Outcome.retry("timeout", "it arrived, and its answer did not"),
    "discarded": Outcome.discarded("ignored", "nobody wants it"),
}
ANSWERS = [*["sent"] * 5, "retry", "unheard", "outage", "dead", "discarded"]
NOT_SENT = {"lease_expired", "not_started"}
"""Errors of messages that were not sent."""

ENDS_OF_TIMES = {
    "leases": "locked_until", "drains": "until", "waiting": "due", "ready": "since", "held": "since", "keys": "due",
}  # fmt: skip
"""Where the storage says when time is over."""

ASTRAY = """
SELECT 'held, and its key has no row', h.seq FROM {s}.outbox_held h WHERE NOT EXISTS (
  SELECT FROM {s}.outbox_keys k WHERE k.destination = h.destination AND k.key = h.key AND k.more AND k.first <= h.seq)
UNION ALL
SELECT 'a key that nobody has', min(m.seq) FROM {s}.outbox_keys k JOIN {s}.outbox_messages m USING (destination, key)
WHERE k.token IS NOT NULL
  AND NOT EXISTS (SELECT FROM {s}.outbox_leases l WHERE l.token = k.token AND l.seqs && ARRAY(
    SELECT m.seq FROM {s}.outbox_messages m WHERE m.destination = k.destination AND m.key = k.key))
GROUP BY k.destination, k.key
UNION ALL
SELECT 'at work, and its key has no row', w.seq FROM {s}.outbox_at_work w
WHERE w.key IS NOT NULL AND w.place = 'leased' AND NOT EXISTS (
  SELECT FROM {s}.outbox_keys k WHERE k.destination = w.destination AND k.key = w.key AND k.token IS NOT NULL)
UNION ALL
SELECT 'taken from behind a dead letter', min(h.seq) FROM {s}.outbox_held h
JOIN {s}.outbox_keys k ON k.destination = h.destination AND k.key = h.key AND k.token IS NOT NULL
JOIN {s}.outbox_dead d ON d.destination = h.destination AND d.key = h.key
JOIN {s}.outbox_leases l ON l.token = k.token
GROUP BY h.destination, h.key, l.seqs HAVING min(d.seq) < l.seqs[1]
"""
"""Whatever happens, there is nothing of this."""


class Destination:
    """Answers as it was told, and keeps the order of what arrived. The worker stands still before and after."""

    def __init__(self) -> None:
        self.arrived: list[str] = []

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        answers: list[str] = getcurrent().parent.switch()
        answers = (answers + ["sent"] * len(messages))[: len(messages)]
        self.arrived += [m.id for m, answer in zip(messages, answers, strict=True) if answer in ("sent", "unheard")]
        getcurrent().parent.switch()
        return [OUTCOMES[answer] for answer in answers]

    def close(self) -> None:
        """Nothing is open."""


class Killed(BaseException):
    """The process of a worker ended, wherever it was."""


class Relay(RuleBasedStateMachine):
    """One outbox, transactions of the application, two claimers, and workers."""

    configured: Settings
    rows: Rows
    trace: Trace

    @initialize()
    def start_anew(self) -> None:
        self.schema = self.rows.tables.messages.schema
        self.rows.clear()
        with self.rows.engine.begin() as connection:
            connection.execute(delete(self.rows.tables.destinations))
            connection.execute(text(f"TRUNCATE {self.schema}.outbox_transitions"))
        self.stores = [Store.connect(self.configured) for _ in range(2)]
        self.begun: set[str] = set()
        for store in self.stores:
            store.leases.begin = partial(self._begin_once, store.leases.begin)  # type: ignore[method-assign]
            store.takes._sizes = {"orders": (4, 2), "mails": (4, 1)}
        self.pace = Pace(self.configured.destinations)
        self.destination = Destination()
        self.transactions: list[Connection] = [self.rows.engine.connect() for _ in range(2)]
        self.written: dict[Connection, list[tuple[int, str, str | None]]] = defaultdict(list)
        self.committed: list[tuple[int, str, str | None]] = []
        self.discarded: set[str] = set()
        self.queue: list[Single | Slot] = []
        self.workers: list[greenlet] = []
        self.mood = "takes"

    # One rule, whose actions are weighted: with a rule for each, hypothesis seldom brings together what takes them all.
    @rule(data=st.data(), action=st.sampled_from(ACTIONS))
    def act(self, data: st.DataObject, action: str) -> None:
        self.data = data
        getattr(self, action)()
        with self.rows.engine.connect() as connection:
            astray = connection.execute(text(ASTRAY.format(s=self.schema))).all()
        assert not astray, f"after {action}: {astray}"

    def one_of(self, choices: Sequence[Any]) -> Any:
        """By its place: ids and other chance must not decide, so that a history can be repeated."""
        return choices[self.data.draw(st.integers(0, len(choices) - 1))]

    # --- the application ---

    def write(self) -> None:
        for _ in range(self.one_of((1, 2, 3))):
            transaction, key, to = self.one_of(self.transactions), self.one_of(KEYS), self.one_of(("orders", "mails"))
            row: dict[str, Any] = {"id": str(uuid4()), "event_type": "e", "destination": to, "text": "{}"}
            row |= {"content_type": "application/json", "key": f"{to} {key}" if key else None}
            row |= {"priority": self.one_of(("normal", "normal", "high", "low"))}
            row |= self.one_of([{}] * 7 + [{"delay": LONG}])
            row["latest"] = key is not None and self.one_of([False] * 7 + [True])
            transaction.execute(text(f"SELECT {self.schema}.outbox_write(:rows)"), {"rows": json.dumps([row])})
            numbered = text(f"SELECT seq FROM {self.schema}.outbox_messages WHERE id = :id")
            seq = transaction.execute(numbered, {"id": row["id"]}).scalar_one()
            self.written[transaction].append((seq, row["id"], row["key"]))

    def end(self) -> None:
        transaction = self.one_of(self.transactions)
        written = self.written.pop(transaction, [])
        if self.one_of([True] * 4 + [False]):
            transaction.commit()
            self.committed += written
        else:
            transaction.rollback()

    def cancel(self) -> None:
        if self.committed:
            _, id, _ = self.one_of(self.committed[-6:])
            cancel = text(f"SELECT * FROM {self.schema}.outbox_cancel(ARRAY[CAST(:id AS uuid)])")
            with self.rows.engine.begin() as connection:
                self.discarded |= {str(gone) for gone in connection.scalars(cancel, {"id": id})}

    # --- the relay ---

    def claim(self) -> None:
        self.mood = self.one_of([*["takes"] * 8, "refuses", "takes it, and does not say so"])
        with suppress(BrokerUnreachable):
            claim(self.one_of(self.stores), self._send_tasks, lambda: 0, self.pace)

    def _send_tasks(self, singles: Sequence[Single], drains: Sequence[Slot]) -> None:
        mood, self.mood = self.mood, "takes"
        self.queue += [] if mood == "refuses" else [*singles, *drains]
        if mood != "takes":
            raise BrokerUnreachable(url="test", reason=mood)

    def start(self) -> greenlet | None:
        """A worker takes a task, which may come once more, and begins it."""
        if not self.queue:
            return None
        task = self.one_of(self.queue)
        if self.one_of([True] * 4 + [False]):
            self.queue.remove(task)
        worker, by_celery = greenlet(self._send), self.one_of((False, True))
        self._resume(worker, task, by_celery)
        return worker

    def _send(self, task: Single | Slot, by_celery: bool) -> None:
        """The life of a worker. One that is killed does not give the slot of its drain back."""
        store, publishers = self.stores[0], dict.fromkeys(("orders", "mails"), self.destination)
        if isinstance(task, Slot):
            if store.claims.begin_drain(task):
                drain(store, publishers, task.destination, Listener())
                store.claims.end_drain(task)
            return
        ended = publish(store, publishers, task.destination, task.token, Listener(), by_celery=by_celery)
        if ended is not None and ended.verdict.step is Step.RETRY:
            assert ended.verdict.token
            self.queue.append(task._replace(token=ended.verdict.token))

    def _begin_once(self, begin: Callable[..., LeasedMessage | None], token: str, of: str) -> LeasedMessage | None:
        if message := begin(token, of):
            assert token not in self.begun, "two send a message"
            self.begun.add(token)
        return message

    def _resume(self, worker: greenlet, *arguments: Any) -> None:
        worker.switch(*arguments)
        if not worker.dead:
            self.workers.append(worker)

    def go_on(self, worker: greenlet | None = None) -> None:
        if self.workers:
            worker = worker or self.one_of(self.workers)
            self.workers.remove(worker)
            self._resume(worker, [self.one_of(ANSWERS) for _ in range(self.one_of(range(7)))])

    def deliver(self) -> None:
        """A worker takes a task, and nothing happens until it has ended it."""
        worker = self.start()
        while worker in self.workers:
            self.go_on(worker)

    def die(self) -> None:
        if self.workers:
            worker = self.one_of(self.workers)
            self.workers.remove(worker)
            with suppress(Killed):
                worker.throw(Killed())

    def broker_loses(self) -> None:
        """A task, or all."""
        if self.queue and self.one_of((True, False)):
            self.queue.remove(self.one_of(self.queue))
        else:
            self.queue.clear()

    def recall(self) -> None:
        """The broker was emptied, and the relay has noticed that."""
        self.stores[0].claims.recall()

    def time_passes(self) -> None:
        """Leases expire, and waits are over."""
        with self.rows.engine.begin() as connection:
            for table, column in ENDS_OF_TIMES.items():
                later = f"{column} > clock_timestamp() AND {column} < 'infinity'"
                free = f"SELECT ctid FROM {self.schema}.outbox_{table} WHERE {later} FOR UPDATE SKIP LOCKED"
                passed = f"UPDATE {self.schema}.outbox_{table} SET {column} = clock_timestamp()"
                connection.execute(text(f"{passed} WHERE ctid = ANY (ARRAY({free}))"))
            connection.execute(text(f"UPDATE {self.schema}.outbox_destinations SET pause_until = clock_timestamp()"))

    def some_leases_expire(self) -> None:
        """A server stood still while it granted them, or the clock struck between them."""
        each = f"SELECT token, row_number() OVER (ORDER BY seqs[1]) AS n FROM {self.schema}.outbox_leases"
        half = f"SELECT token FROM ({each}) AS leases WHERE n % 2 = :half"
        over = f"UPDATE {self.schema}.outbox_leases SET locked_until = clock_timestamp() WHERE token IN ({half})"
        with self.rows.engine.begin() as connection:
            connection.execute(text(over), {"half": self.one_of((0, 1))})

    # --- people ---

    def redrive(self) -> None:
        if dead := [row.id for row in self.rows.hot() if row.status == "dead"]:
            acted(self.stores[0], "redrive", dead)

    def try_now(self) -> None:
        """All that wait for another attempt."""
        if rows := self.rows.hot():
            acted(self.stores[0], "try", [row.id for row in rows], states=["retrying"])

    def discard(self) -> None:
        """A dead letter, or a message that waits."""
        if rows := self.rows.hot():
            id = self.one_of(rows).id
            if acted(self.stores[0], "discard", [id], states=["dead", "pending"]).count:
                self.discarded.add(str(id))

    # --- the end ---

    def teardown(self) -> None:
        try:
            self._go_on_to_the_end()
            self._check()
        finally:
            for each in (*self.transactions, *self.stores):
                each.close()

    def _go_on_to_the_end(self) -> None:
        for transaction in self.transactions:
            transaction.commit()
            self.committed += self.written.pop(transaction, [])
        self.mood = "takes"
        self._finish()
        for n in range(len(self.committed) + 6):
            if not self.rows.hot() and not self._keys():
                break
            self.redrive()
            self.time_passes()
            self.queue.clear()
            claim(self.stores[n % 2], self._send_tasks, lambda: 0, self.pace)
            for task in self.queue:
                self._resume(greenlet(self._send), task, False)
                self._finish()

    def _finish(self) -> None:
        """All workers go on to their end, and all that they send arrives."""
        while self.workers:
            self._resume(self.workers.pop(), [])

    def _keys(self) -> list[Any]:
        with self.rows.engine.connect() as connection:
            return list(connection.execute(text(f"SELECT k::text FROM {self.schema}.outbox_keys k")).all())

    def _check(self) -> None:
        traced = self.trace.check()
        assert not traced.wrong, str(traced)
        delivered = self.destination.arrived
        first = {id: n for n, id in enumerate(dict.fromkeys(delivered))}
        wanted = {id for _, id, _ in self.committed}
        archived = {str(row.id): row for row in self.rows.archived()}
        gone = self.discarded | {id for id, row in archived.items() if row.state == "discarded"}
        assert set(first) <= wanted, "sent what was never committed"
        assert not [day for day in self.stores[0].ask("look/books.sql") if day.missing], "the books do not balance"
        stuck = [self.trace.life(row.id) for row in self.rows.hot()]
        assert not stuck, "stuck:\n" + "\n\n".join("\n".join(life) for life in stuck)
        assert not (keys := self._keys()), f"busy, and nothing of them is left: {keys}"
        assert wanted - gone <= set(first), "lost"
        assert wanted == set(archived), "lost"
        for key in {key for *_, key in self.committed if key}:
            in_order = sorted((seq, id) for seq, id, own in self.committed if own == key and id in first)
            assert [id for _, id in in_order] == sorted((id for _, id in in_order), key=first.__getitem__), "overtaken"
        repeated = [id for id, count in Counter(delivered).items() if count > 1]
        codes = {id: {entry.get("code") for entry in archived[id].history or ()} - NOT_SENT for id in repeated}
        assert all(archived[id].last_error_code and codes[id] for id in repeated), "repeated without a cause"


@pytest.mark.timeout(900 + 5 * EXAMPLES)  # each of up to 80 steps, which are several transactions
def test_the_promises_hold_whatever_happens(
    settings: MakeSettings,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    destinations = {name: {"url": "a://b", "max_attempts": 4} for name in ("orders", "mails")}
    # No time passes by itself: each wait and each lease is longer than the test.
    configured = settings(
        singles=3, breaker_failures=20, destinations=destinations, queue_lease=LONG, backoff_base=50, nudge=False
    )
    # Each statement is committed at once, but what an application does; and a claim does all that it may do.
    monkeypatch.setattr("outbox_tasks.relay.store.claims.HOUSEKEEPING_SECONDS", 0.0)
    for module in ("claims", "takes"):
        monkeypatch.setattr(f"outbox_tasks.relay.store.{module}.FREED_LATELY", timedelta(0))
    trace = Trace(rows.engine, str(rows.tables.messages.schema))
    trace.install()
    run_state_machine_as_test(
        type("Here", (Relay,), {"configured": configured, "rows": rows, "trace": trace}),
        settings=search(
            max_examples=EXAMPLES, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
