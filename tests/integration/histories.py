"""The histories of `test_protocol_machine.py`: what may happen next, and what must hold at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import Connection, delete, insert, text, update

from lab.trace import Trace
from lab.transitions import Transition, either
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.model import Bundle, Ticket
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.relay.claim import claim
from outbox_tasks.relay.store.runs import Runs
from tests.conftest import Rows, seconds_from_now
from tests.integration.machine import LONG, Broker, Chance, Destination, Forgetful, Runner, Tasks, Worker

KEYS = ("a", "a", "b", None)
ANSWERS = [*["sent"] * 5, "retry", "unheard", "outage", "dead"]
TRANSACTIONS = 2
ACTIONS = [
    *["write"] * 6, *["commit"] * 4, "roll_back", *["claim"] * 5, *["start"] * 6, *["go_on"] * 5, *["deliver"] * 3,
    "die", "lose_a_task", "time_passes", *["some_leases_expire"] * 2, "broker_is_flushed", "recall", "redrive",
    "discard", *["begin_a_run"] * 3, *["end_a_run"] * 2, "renew",
]  # fmt: skip
ENDS = [*["done"] * 4, "dead", "discarded", "lost", "retry", "put back", "silent"]

LEASES = either("leased", "begun", "handed over", "running")
STATES = ("leased", "begun", "handed over", "running", "pending", "dead")
BY_HAND = (
    Transition(
        "time passes", ("waiting", "pending", "dead", *LEASES), STATES, "", ends=("past",),
        moved=("earlier", "same", "later"), still=True,
    ),
    Transition(
        "a crash undoes a begin", ("begun",), ("leased",), "", counted=(-1,), ends=("past", "now", "ahead"),
        codes=("kept", "some"),
    ),
)  # fmt: skip


class Relay(RuleBasedStateMachine):
    """One outbox, transactions of the application, workers, and the application's own workers."""

    store: Forgetful
    rows: Rows
    trace: Trace

    @initialize()
    def start_anew(self) -> None:
        t = self.rows.tables
        with self.rows.engine.begin() as connection:
            for table in (t.messages, t.archive, t.destinations):
                connection.execute(delete(table))
            connection.execute(update(t.slots).values(token=None, held_until=None))
            connection.execute(text(f"TRUNCATE {t.messages.schema}.outbox_transitions"))
        self.connections: list[Connection] = [self.rows.engine.connect() for _ in range(TRANSACTIONS)]
        self.written: dict[int, list[tuple[int, str, str | None, Bundle | None]]] = defaultdict(list)
        self.committed: list[tuple[int, str, str | None]] = []
        self.discarded: set[str] = set()
        self.broker, self.orders, self.tasks = Broker(), Destination(), Tasks()
        self.publishers = {"orders": self.orders, "tasks": self.tasks}
        self.workers: list[Worker] = []
        self.runner = Runner(Runs(self.store.engine, self.store.settings), self.tasks)
        self.person = Operator(self.store, "ann")
        self.count = 0

    # One rule, whose actions are weighted: with a rule for each, hypothesis seldom brings together what takes them all.
    @rule(data=st.data(), action=st.sampled_from(ACTIONS))
    def act(self, data: st.DataObject, action: str) -> None:
        getattr(self, action)(Chance(lambda sides: data.draw(st.integers(0, sides - 1))))

    # --- the application ---

    def write(self, chance: Chance) -> None:
        for _ in range(1 + chance.number(3)):
            self._write(chance)

    def _write(self, chance: Chance) -> None:
        who, key = chance.number(TRANSACTIONS), chance.of(KEYS)
        to = chance.of(("orders", "orders", "tasks"))
        own = f"{to} {key}" if key else None
        row: dict[str, Any] = {"id": uuid4(), "event_type": "e", "destination": to, "payload": b"{}", "key": own}
        row["priority"] = chance.of((0, 0, 1, -1))
        row["locked_until"] = seconds_from_now(-1)
        dispatch = None
        if key is None and chance.one_in(2):
            row |= {"lease": uuid4(), "locked_until": seconds_from_now(LONG)}
            dispatch = Bundle(to, str(row["lease"]), (Ticket(str(row["id"]), 0, "e"),))
        m = self.rows.tables.messages
        seq, id = self.connections[who].execute(insert(m).values(**row).returning(m.c.seq, m.c.id)).one()
        self.written[who].append((seq, str(id), own, dispatch))

    def commit(self, chance: Chance) -> None:
        self.end(chance.number(TRANSACTIONS), well=True)

    def roll_back(self, chance: Chance) -> None:
        self.end(chance.number(TRANSACTIONS), well=False)

    def end(self, who: int, *, well: bool) -> None:
        written = self.written.pop(who, [])
        (self.connections[who].commit if well else self.connections[who].rollback)()
        for seq, id, key, dispatch in written if well else ():
            self.committed.append((seq, id, key))
            self.broker.queue += [dispatch] if dispatch else []

    # --- the relay ---

    def claim(self, chance: Chance) -> None:
        self.broker.mood = chance.of([*["takes"] * 8, "refuses", "takes it, and does not say so"])
        with suppress(BrokerUnreachable):
            claim(self.store, self.broker.send, lambda: 0)

    def start(self, chance: Chance) -> Worker | None:
        """A worker takes a task, which may come once more, and begins it."""
        if not self.broker.queue:
            return None
        bundle = chance.of(self.broker.queue)
        if not chance.one_in(5):
            self.broker.queue.remove(bundle)
        self.count += 1
        worker = Worker(self.count, self.store, self.publishers, bundle)
        self.store.begin_is_lost = chance.one_in(10) and not self._frail()
        self._resume(worker, chance)
        self.store.begin_is_lost = False
        return worker

    def go_on(self, chance: Chance) -> None:
        if self.workers:
            worker = chance.of(self.workers)
            self.workers.remove(worker)
            self.store.settle_is_lost = chance.one_in(10) and not self._frail(worker)
            self._resume(worker, chance)
            self.store.settle_is_lost = False

    def deliver(self, chance: Chance) -> None:
        """A worker takes a task, and nothing happens until it has ended it."""
        worker = self.start(chance)
        while worker in self.workers:
            self.workers.remove(worker)
            self._resume(worker, chance)

    def _resume(self, worker: Worker, chance: Chance) -> None:
        if worker.go_on([chance.of(ANSWERS) for _ in range(chance.number(7))]):
            self.workers.append(worker)
        self.broker.queue += worker.retries
        worker.retries = []

    def _frail(self, *more: Worker) -> bool:
        """Nobody would be left who could tell what was sent."""
        return any(worker.frail for worker in (*self.workers, *more))

    def die(self, chance: Chance) -> None:
        if self.workers and not self._frail():
            worker = chance.of(self.workers)
            self.workers.remove(worker)
            worker.kill()

    def lose_a_task(self, chance: Chance) -> None:
        queue: list[Any] = chance.of((self.broker.queue, self.tasks.copies))
        if queue:
            queue.remove(chance.of(queue))

    def broker_is_flushed(self, chance: Chance) -> None:
        chance.of((self.broker.queue, self.tasks.copies)).clear()

    def recall(self, _: Chance) -> None:
        """The broker was emptied, and the relay has noticed that."""
        self.store.recall()

    def time_passes(self, _: Chance | None = None) -> None:
        """Leases expire, and waits are over."""
        self.rows.change(locked_until=seconds_from_now(-1))
        t = self.rows.tables
        with self.rows.engine.begin() as connection:
            connection.execute(update(t.destinations).values(pause_until=seconds_from_now(-1)))
            connection.execute(update(t.slots).values(held_until=seconds_from_now(-1)))

    def some_leases_expire(self, chance: Chance) -> None:
        """A server stood still while it granted them, or the clock struck between them."""
        held = [str(row.id) for row in self.rows.hot() if row.lease is not None]
        if held:
            these = {chance.of(held) for _ in range(3)}
            self.rows.change([*these], locked_until=seconds_from_now(-1))

    # --- the application's workers ---

    def begin_a_run(self, chance: Chance) -> None:
        if self.tasks.copies:
            copy = chance.of(self.tasks.copies)
            if not chance.one_in(4):
                self.tasks.copies.remove(copy)
            self.count += 1
            self.runner.begin(copy, self.count)

    def end_a_run(self, chance: Chance) -> None:
        if self.runner.running:
            self.count += 1
            self.runner.end(*chance.of(self.runner.running), chance.of(ENDS), self.count)

    def renew(self, _: Chance) -> None:
        """Some runs still run."""
        self.runner.runs.renew({run: LONG for run, _ in self.runner.running})

    # --- people ---

    def redrive(self, _: Chance | None = None) -> None:
        dead = [row.id for row in self.rows.hot() if row.status == "dead"]
        if dead:
            self.person.act("redrive", dead)

    def discard(self, chance: Chance) -> None:
        """A dead letter, or a message that waits."""
        if rows := self.rows.hot():
            id: UUID = chance.of(rows).id
            if self.person.act("discard", [id], states=["dead", "pending"]).count:
                self.discarded.add(str(id))

    # --- the end ---

    def teardown(self) -> None:
        for who in range(TRANSACTIONS):
            self.end(who, well=True)
            self.connections[who].close()
        for worker in self.workers:
            worker.finish()
        self.broker.mood = "takes"
        for _ in range(len(self.committed) + 3):
            self.redrive()
            self.time_passes()
            self.broker.queue.clear()
            claim(self.store, self.broker.send, lambda: 0)
            for bundle in self.broker.queue:
                Worker(0, self.store, self.publishers, bundle).finish()
            for copy in self.tasks.copies:
                if self.runner.begin(copy, 0):
                    self.runner.end(*self.runner.running[-1], "done", 0)
        traced = self.trace.check(*BY_HAND)
        assert not traced.wrong, str(traced)
        self._check()

    def _check(self) -> None:
        delivered = [*self.orders.arrived, *self.runner.began]
        first = {id: n for n, id in enumerate(dict.fromkeys(delivered))}
        wanted = {id for _, id, _ in self.committed}
        archived = {str(row.id): row for row in self.rows.archived()}
        gone = self.discarded | {id for id, row in archived.items() if row.state == "discarded"}
        assert set(first) <= wanted, "sent what was never committed"
        stuck = [self.trace.life(row.id) for row in self.rows.hot()]
        assert not stuck, "stuck:\n" + "\n\n".join("\n".join(life) for life in stuck)
        assert wanted - gone <= set(first), "lost"
        assert wanted == set(archived), "lost"
        for key in {key for *_, key in self.committed if key}:
            mine = sorted((seq, id) for seq, id, own in self.committed if own == key and id in first)
            assert [id for _, id in mine] == sorted((id for _, id in mine), key=first.__getitem__), "overtaken"
        repeated = [id for id, count in Counter(delivered).items() if count > 1]
        assert all(archived[id].last_error_code for id in repeated), "repeated without a cause"
