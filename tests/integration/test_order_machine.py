"""Whatever happens, in whatever order: the first deliveries of a key are in the order of its messages, nothing is lost,
and nothing is stuck.

Hypothesis makes up histories of overlapping transactions, claims, sends that fail or whose answer is lost, crashes
before and after the send, leases that expire, all or some of a bundle, statements that a crash of the server undoes,
tasks that come twice or while others are in the middle of a send, dead letters, redrives and discards, against a real
PostgreSQL.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sqlalchemy import Connection, delete, insert, select, update

from outbox_tasks.model import Bundle, LeasedMessage, Outcome, Step, Verdict
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.send import begin_and_send
from outbox_tasks.relay.settle import settle
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows, seconds_from_now

KEYS = ("a", "b", None)
LIKELY_KEYS = ("a", "a", "b", None)
ANSWERS = {
    "sent": Outcome.sent(),
    "retry": Outcome.retry("busy", "later"),
    "outage": Outcome.outage("away", "gone"),
    "dead": Outcome.dead("no", "no"),
    "unheard": Outcome.retry("timeout", "it arrived, and its answer did not"),
}
LIKELY = [*["sent"] * 7, "retry", "unheard", "outage", *["dead"] * 2]
TRANSACTIONS = 2
WHO = st.integers(0, TRANSACTIONS - 1)
ACTIONS = [
    *["write"] * 6, *["commit"] * 4, "roll_back", *["claim_and_deliver"] * 4, *["claim"] * 3, *["deliver"] * 4,
    *["time_passes"] * 2, *["some_leases_expire"] * 2, "broker_is_flushed", "redrive", "discard",
]  # fmt: skip
MEANWHILE = ["write", "commit", *["claim_and_deliver"] * 2, "deliver", "time_passes", "some_leases_expire"]
DEEPEST = 2
"""Sends that one history may have open at once, each begun while the other was in the middle of its own."""


class Destination:
    """Answers as drawn, and keeps the order of what arrived."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.arrived: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        answers = [self.answers.pop(0) if self.answers else "sent" for _ in messages]
        self.meanwhile()
        self.arrived += [
            message.id for message, answer in zip(messages, answers, strict=True) if answer in ("sent", "unheard")
        ]
        return [ANSWERS[answer] for answer in answers]

    def close(self) -> None:
        """Nothing is open."""


class Forgetful(Store):
    """On a server that may crash behind a statement which it has not yet written to its disk."""

    begin_is_lost = False
    settles_kept = 2
    worker = 0
    """Who is at work."""
    rows_of_test: Rows

    def begin(self, bundle: Bundle, **keywords: Any) -> dict[str, LeasedMessage]:
        before = {str(row.id): row for row in self.rows_of_test.hot()}
        begun = super().begin(bundle, **keywords)
        if self.begin_is_lost:
            for id in begun:
                row = before[id]
                same = {name: getattr(row, name) for name in ("attempts", "begun", "locked_until", "locked_by")}
                self.rows_of_test.change([id], **same)
        return begun

    def settle(
        self, lease: str, destination: str, verdicts: Sequence[Verdict], sender: Any = None, **keywords: Any
    ) -> set[str]:
        if verdicts:
            self.settles_kept -= 1
            if self.settles_kept < 0:
                return {verdict.ticket.id for verdict in verdicts}
        return super().settle(lease, destination, verdicts, sender, **keywords)


class Relay(RuleBasedStateMachine):
    """One outbox, three transactions of the application, and any number of bundles under way."""

    store: Forgetful
    rows: Rows
    data: st.DataObject
    depth = worker = 0
    begin_was_lost = False
    """Now, in the middle of a send."""

    @initialize()
    def start(self) -> None:
        m = self.rows.tables.messages
        with self.rows.engine.begin() as connection:
            for table in (m, self.rows.tables.archive, self.rows.tables.destinations):
                connection.execute(delete(table))
        self.connections: list[Connection] = [self.rows.engine.connect() for _ in range(TRANSACTIONS)]
        self.written: dict[int, list[tuple[int, str, str | None]]] = defaultdict(list)
        self.committed: list[tuple[int, str, str | None]] = []
        self.discarded: set[str] = set()
        self.bundles: list[Bundle] = []
        self.destination = Destination()

    # One rule, whose actions are weighted: with a rule for each, hypothesis seldom brings together what takes them all.
    @rule(data=st.data(), action=st.sampled_from(ACTIONS))
    def act(self, data: st.DataObject, action: str) -> None:
        self.data = data
        self.destination.meanwhile = self.meanwhile
        getattr(self, action)(data)

    def meanwhile(self) -> None:
        """What happens in the middle of a send."""
        if self.depth < DEEPEST:
            for action in self.data.draw(st.lists(st.sampled_from(MEANWHILE), max_size=2)):
                self.depth += 1
                answers = self.destination.answers
                getattr(self, action)(self.data)
                self.destination.answers = answers
                self.depth -= 1

    def write(self, data: st.DataObject) -> None:
        who, key = data.draw(WHO), data.draw(st.sampled_from(LIKELY_KEYS))
        m = self.rows.tables.messages
        row = {"id": uuid4(), "event_type": "e", "destination": "orders", "payload": b"{}", "key": key}
        row["priority"] = data.draw(st.sampled_from((0, 0, 1, -1)))
        statement = insert(m).values(**row, locked_until=seconds_from_now(-1)).returning(m.c.seq, m.c.id)
        seq, id = self.connections[who].execute(statement).one()
        self.written[who].append((seq, str(id), key))

    def commit(self, data: st.DataObject) -> None:
        self.end(data.draw(WHO), well=True)

    def roll_back(self, data: st.DataObject) -> None:
        self.end(data.draw(WHO), well=False)

    def end(self, who: int, *, well: bool) -> None:
        written = self.written.pop(who, [])
        if well:
            self.connections[who].commit()
            self.committed += written
        else:
            self.connections[who].rollback()

    def claim(self, _: st.DataObject | None = None) -> None:
        claim(self.store, self.bundles.extend, lambda: 0)

    def claim_and_deliver(self, data: st.DataObject) -> None:
        self.claim()
        self.deliver(data)

    def deliver(self, data: st.DataObject) -> None:
        """A task runs: to its end, or until its worker dies after the send; perhaps it will come once more."""
        if not self.bundles:
            return
        bundle = data.draw(st.sampled_from(self.bundles))
        # In the middle of a send whose begin a crash undid, no other sender dies: nobody would be left who could tell.
        ends = ["settled", "twice"] if self.begin_was_lost else ["settled"] * 4 + ["twice", "lost", "undone"]
        end = data.draw(st.sampled_from(ends))
        if end != "twice":
            self.bundles.remove(bundle)
        self.destination.answers = data.draw(st.lists(st.sampled_from(LIKELY), max_size=6))
        self.worker += 1
        worker = self.store.worker = self.worker
        # Not where its worker dies too, or the server twice: the same.
        lost = end in ("settled", "twice") and data.draw(st.integers(0, 5)) == 5
        before, self.begin_was_lost = self.begin_was_lost, self.begin_was_lost or lost
        self.store.begin_is_lost = lost
        outcomes = begin_and_send(self.store, {"orders": self.destination}, bundle)
        self.store.begin_is_lost, self.begin_was_lost = False, before
        if end != "lost":
            self.store.worker = worker
            self.store.settles_kept = data.draw(st.integers(0, 1)) if end == "undone" else 2
            for verdict in settle(self.store, bundle, outcomes):
                if verdict.step is Step.RETRY:
                    self.bundles.append(Bundle("orders", bundle.lease, (verdict.ticket,)))

    def broker_is_flushed(self, _: st.DataObject) -> None:
        self.bundles.clear()

    def time_passes(self, _: st.DataObject | None = None) -> None:
        """Leases expire, and waits are over."""
        self.rows.change(locked_until=seconds_from_now(-1))
        with self.rows.engine.begin() as connection:
            connection.execute(update(self.rows.tables.destinations).values(pause_until=seconds_from_now(-1)))

    def some_leases_expire(self, data: st.DataObject) -> None:
        """A server stood still while it granted them, or the clock struck between them."""
        held = [str(row.id) for row in self.rows.hot() if row.lease is not None]
        if held:
            these = data.draw(st.sets(st.sampled_from(held), min_size=1, max_size=3))
            self.rows.change(sorted(these), locked_until=seconds_from_now(-1))

    def redrive(self, _: st.DataObject | None = None) -> None:
        m = self.rows.tables.messages
        again: dict[str, Any] = {"status": "pending", "attempts": 0, "lease": None, "begun": False}
        with self.rows.engine.begin() as connection:
            dead = update(m).where(m.c.status == "dead")
            connection.execute(dead.values(**again, locked_until=seconds_from_now(-1)))

    def discard(self, _: st.DataObject) -> None:
        m = self.rows.tables.messages
        first = select(m.c.id).where(m.c.status == "dead").order_by(m.c.seq).limit(1).scalar_subquery()
        with self.rows.engine.begin() as connection:
            self.discarded |= {str(id) for id in connection.scalars(delete(m).where(m.c.id == first).returning(m.c.id))}

    def teardown(self) -> None:
        for who in range(TRANSACTIONS):
            self.end(who, well=True)
            self.connections[who].close()
        self.destination.meanwhile = lambda: None
        for _ in range(len(self.committed) + 2):
            self.redrive()
            self.time_passes()
            self.bundles.clear()
            self.claim()
            self.destination.answers = []
            self.store.settles_kept = len(self.committed)
            for bundle in self.bundles:
                deliver(self.store, {"orders": self.destination}, bundle)
        first = {id: n for n, id in enumerate(dict.fromkeys(self.destination.arrived))}
        wanted = {id for _, id, _ in self.committed}
        assert set(first) <= wanted, "sent what was never committed"
        assert wanted - self.discarded <= set(first), "lost or stuck"
        for key in KEYS[:-1]:
            mine = sorted((seq, id) for seq, id, own in self.committed if own == key and id in first)
            assert [id for _, id in mine] == sorted((id for _, id in mine), key=first.__getitem__), "overtaken"
        causes = {str(row.id): row.last_error_code for row in self.rows.archived()}
        repeated = [id for id, count in Counter(self.destination.arrived).items() if count > 1]
        assert all(causes[id] for id in repeated if id not in self.discarded), "repeated without a cause"


@pytest.mark.timeout(900)  # 60 runs of up to 40 steps, each several transactions
def test_no_message_is_ever_overtaken_by_one_of_its_key(
    new_store: MakeStore, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Forgetful.connect(new_store(bundle_size=3, max_in_flight=100, breaker_failures=20).settings)
    store.rows_of_test = rows
    monkeypatch.setattr("outbox_tasks.relay.store.processes.holder", lambda: f"here:{store.worker}")

    class Here(Relay):
        pass

    Here.store, Here.rows = store, rows
    examples = int(os.environ.get("ORDER_EXAMPLES", "60"))
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    store.close()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
