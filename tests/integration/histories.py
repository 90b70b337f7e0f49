"""The histories of `test_protocol_machine.py`: what may happen next, and what must hold at the end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import Connection, delete, text

from lab.trace import Trace
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.model import Single
from outbox_tasks.relay.claim import Pace, claim
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised.store import Runs
from tests.conftest import Rows
from tests.integration.acting import acted
from tests.integration.machine import CRASHED, LONG, Broker, Chance, Destination, Forgetful, Runner, Tasks, Worker

KEYS = ("a", "a", "b", None)
ANSWERS = [*["sent"] * 5, "retry", "unheard", "outage", "dead", "discarded"]
TRANSACTIONS = 2
ACTIONS = [
    *["write"] * 5, *["commit"] * 4, "roll_back", *["claim"] * 6, *["start"] * 3, *["go_on"] * 5, *["deliver"] * 9,
    "die", "lose_a_task", "time_passes", "some_leases_expire", "broker_is_flushed", "recall", "redrive", "discard",
    "try_now", *["cancel"] * 2,
    *["begin_a_run"] * 5, *["end_a_run"] * 4, "renew",
]  # fmt: skip
ENDS = [*["done"] * 4, "dead", "discarded", "lost", "retry", "put back", "silent"]

NO_CAUSE = {"lease_expired", "not_started"}
"""Errors of messages that were not sent."""

PASSED = {
    "leases": "locked_until", "runs": "locked_until", "drains": "until", "waiting": "due", "ready": "since",
    "held": "since", "keys": "due",
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
  AND NOT EXISTS (SELECT FROM {s}.outbox_runs r WHERE r.destination = k.destination AND r.key = k.key)
GROUP BY k.destination, k.key
UNION ALL
SELECT 'at work, and its key has no row', w.seq FROM {s}.outbox_at_work w
WHERE w.key IS NOT NULL AND w.place IN ('leased', 'running', 'handed over') AND NOT EXISTS (
  SELECT FROM {s}.outbox_keys k WHERE k.destination = w.destination AND k.key = w.key AND k.token IS NOT NULL)
UNION ALL
SELECT 'taken from behind a dead letter', min(h.seq) FROM {s}.outbox_held h
JOIN {s}.outbox_keys k ON k.destination = h.destination AND k.key = h.key AND k.token IS NOT NULL
JOIN {s}.outbox_dead d ON d.destination = h.destination AND d.key = h.key
JOIN {s}.outbox_leases l ON l.token = k.token
GROUP BY h.destination, h.key, l.seqs HAVING min(d.seq) < l.seqs[1]
"""
"""Whatever happens, there is nothing of this."""


class Relay(RuleBasedStateMachine):
    """One outbox, transactions of the application, two claimers, workers, and the application's own workers."""

    store: Forgetful
    other: Store
    """Another claimer: each remembers where it goes on."""
    rows: Rows
    trace: Trace

    @initialize()
    def start_anew(self) -> None:
        self.schema = self.rows.tables.messages.schema
        self.rows.clear()
        self.store.start_anew()
        with self.rows.engine.begin() as connection:
            connection.execute(delete(self.rows.tables.destinations))
            connection.execute(text(f"TRUNCATE {self.schema}.outbox_transitions"))
        self.connections: list[Connection] = [self.rows.engine.connect() for _ in range(TRANSACTIONS)]
        self.written: dict[int, list[tuple[int, str, str | None]]] = defaultdict(list)
        self.committed: list[tuple[int, str, str | None]] = []
        self.discarded: set[str] = set()
        self.cancelled: dict[int, set[str]] = defaultdict(set)
        self.pace = Pace(self.store.settings.destinations)
        self.broker, self.orders, self.tasks = Broker(), Destination(), Tasks()
        self.publishers = {"orders": self.orders, "tasks": self.tasks}
        self.workers: list[Worker] = []
        self.runner = Runner(Runs(self.store.engine, self.store.settings), self.tasks)
        self.count = 0

    # One rule, whose actions are weighted: with a rule for each, hypothesis seldom brings together what takes them all.
    @rule(data=st.data(), action=st.sampled_from(ACTIONS))
    def act(self, data: st.DataObject, action: str) -> None:
        self.do(action, Chance(lambda sides: data.draw(st.integers(0, sides - 1))))

    def do(self, action: str, chance: Chance) -> None:
        getattr(self, action)(chance)
        with self.rows.engine.connect() as connection:
            astray = connection.execute(text(ASTRAY.format(s=self.schema))).all()
        assert not astray, f"after {action}: {astray}"

    # --- the application ---

    def write(self, chance: Chance) -> None:
        for _ in range(1 + chance.number(3)):
            self._write(chance)

    def _write(self, chance: Chance) -> None:
        who, key = chance.number(TRANSACTIONS), chance.of(KEYS)
        to = chance.of(("orders", "tasks"))
        own = f"{to} {key}" if key else None
        id = str(uuid4())
        row: dict[str, Any] = {"id": id, "event_type": "e", "destination": to, "text": "{}", "key": own}
        row["content_type"] = "application/json"
        row["priority"] = chance.of(("normal", "normal", "high", "low"))
        if chance.one_in(8):
            row["delay"] = LONG
        row["latest"] = key is not None and chance.one_in(8)
        write = text(f"SELECT {self.schema}.outbox_write(:rows)")
        self.connections[who].execute(write, {"rows": json.dumps([row])})
        numbered = text(f"SELECT seq FROM {self.schema}.outbox_messages WHERE id = :id")
        seq = self.connections[who].execute(numbered, {"id": id}).scalar_one()
        self.written[who].append((seq, id, own))

    def commit(self, chance: Chance) -> None:
        self.end(chance.number(TRANSACTIONS), well=True)

    def roll_back(self, chance: Chance) -> None:
        self.end(chance.number(TRANSACTIONS), well=False)

    def end(self, who: int, *, well: bool) -> None:
        written, cancelled = self.written.pop(who, []), self.cancelled.pop(who, set())
        (self.connections[who].commit if well else self.connections[who].rollback)()
        if well:
            self.committed += written
            self.discarded |= cancelled

    def cancel(self, chance: Chance) -> None:
        """The application takes a message back, and goes on in the same transaction."""
        if self.committed:
            who, (_, id, _) = chance.number(TRANSACTIONS), chance.of(self.committed[-6:])
            cancel = text(f"SELECT * FROM {self.schema}.outbox_cancel(ARRAY[CAST(:id AS uuid)])")
            self.cancelled[who] |= {str(gone) for gone in self.connections[who].scalars(cancel, {"id": id})}

    # --- the relay ---

    def claim(self, chance: Chance) -> None:
        self.broker.mood = chance.of([*["takes"] * 8, "refuses", "takes it, and does not say so"])
        with suppress(BrokerUnreachable):
            claim(chance.of((self.store, self.other)), self.broker.send, lambda: 0, self.pace)

    def start(self, chance: Chance) -> Worker | None:
        """A worker takes a task, which may come once more, and begins it."""
        if not self.broker.queue:
            return None
        task = chance.of(self.broker.queue)
        if isinstance(task, Single) and self._is_being_cancelled(task.id):
            return None
        if not chance.one_in(5):
            self.broker.queue.remove(task)
        self.count += 1
        worker = Worker(self.count, self.store, self.publishers, task, chance.number(4))
        self.store.begin_is_lost = self._nobody_cancels and chance.one_in(10)
        self._resume(worker, chance)
        self.store.begin_is_lost = False
        return worker

    def go_on(self, chance: Chance) -> None:
        if self.workers:
            worker = chance.of(self.workers)
            self.workers.remove(worker)
            self.store.settle_is_lost = chance.one_in(10)
            self._resume(worker, chance)
            self.store.settle_is_lost = False

    def deliver(self, chance: Chance) -> None:
        """A worker takes a task, and nothing happens until it has ended it."""
        worker = self.start(chance)
        while worker in self.workers:
            self.workers.remove(worker)
            self._resume(worker, chance)

    def _is_being_cancelled(self, id: str) -> bool:
        """Whether a worker that begins this message would wait for a transaction of the application."""
        return any(id in cancelled for cancelled in self.cancelled.values())

    @property
    def _nobody_cancels(self) -> bool:
        """A crash ends all transactions. And people's acts may wait for an application that takes messages back."""
        return not any(self.cancelled.values())

    def _resume(self, worker: Worker, chance: Chance) -> None:
        takes = self.store.takes
        takes.take_is_lost = self._nobody_cancels and chance.one_in(20)
        if worker.go_on([chance.of(ANSWERS) for _ in range(chance.number(7))]):
            self.workers.append(worker)
        if takes.take_is_lost:
            takes.take_is_lost = False
            self.store.restarted()
            self.store.ask("claim/suspects.sql", **CRASHED)
        self.broker.queue += worker.retries
        worker.retries = []

    def die(self, chance: Chance) -> None:
        if self.workers:
            worker = chance.of(self.workers)
            self.workers.remove(worker)
            worker.kill()

    def lose_a_task(self, chance: Chance) -> None:
        queue: list[Any] = chance.of((self.broker.queue, self.tasks.copies))
        if queue:
            queue.remove(chance.of(queue))

    def broker_is_flushed(self, chance: Chance) -> None:
        queue: list[Any] = chance.of((self.broker.queue, self.tasks.copies))
        queue.clear()

    def recall(self, _: Chance) -> None:
        """The broker was emptied, and the relay has noticed that."""
        self.store.recall()

    def time_passes(self, _: Chance | None = None) -> None:
        """Leases expire, and waits are over."""
        with self.rows.engine.begin() as connection:
            for table, column in PASSED.items():
                later = f"{column} > clock_timestamp() AND {column} < 'infinity'"
                free = f"SELECT ctid FROM {self.schema}.outbox_{table} WHERE {later} FOR UPDATE SKIP LOCKED"
                passed = f"UPDATE {self.schema}.outbox_{table} SET {column} = clock_timestamp()"
                connection.execute(text(f"{passed} WHERE ctid = ANY (ARRAY({free}))"))
            connection.execute(text(f"UPDATE {self.schema}.outbox_destinations SET pause_until = clock_timestamp()"))

    def some_leases_expire(self, chance: Chance) -> None:
        """A server stood still while it granted them, or the clock struck between them."""
        held = [(table, row) for table in ("leases", "runs") for row in self._held(table)]
        for table, row in {chance.of(held) for _ in range(3)} if held else ():
            with self.rows.engine.begin() as connection:
                over = f"UPDATE {self.schema}.outbox_{table} SET locked_until = clock_timestamp() WHERE ctid = :row"
                connection.execute(text(over), {"row": row})

    def _held(self, table: str) -> list[str]:
        """Where the rows of a table are."""
        number = "seqs[1]" if table == "leases" else "seq"
        with self.rows.engine.connect() as connection:
            rows = connection.scalars(text(f"SELECT ctid::text FROM {self.schema}.outbox_{table} ORDER BY {number}"))
            return list(rows)

    # --- the application's workers ---

    def begin_a_run(self, chance: Chance) -> None:
        if self.tasks.copies:
            copy = chance.of(self.tasks.copies)
            if self._is_being_cancelled(copy.id):
                return
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
        if dead and self._nobody_cancels:
            acted(self.store, "redrive", dead)

    def try_now(self, _: Chance) -> None:
        """All that wait for another attempt."""
        if (rows := self.rows.hot()) and self._nobody_cancels:
            acted(self.store, "try", [row.id for row in rows], states=["retrying"])

    def discard(self, chance: Chance) -> None:
        """A dead letter, or a message that waits."""
        if (rows := self.rows.hot()) and self._nobody_cancels:
            id: UUID = chance.of(rows).id
            if acted(self.store, "discard", [id], states=["dead", "pending"]).count:
                self.discarded.add(str(id))

    # --- the end ---

    def teardown(self) -> None:
        for who in range(TRANSACTIONS):
            self.end(who, well=True)
            self.connections[who].close()
        for worker in self.workers:
            worker.finish()
        self.broker.mood = "takes"
        for n in range(len(self.committed) + 6):
            if not self.rows.hot() and not self._keys():
                break
            self.redrive()
            self.time_passes()
            self.broker.queue.clear()
            claim((self.store, self.other)[n % 2], self.broker.send, lambda: 0, self.pace)
            for task in self.broker.queue:
                Worker(0, self.store, self.publishers, task).finish()
            for copy in self.tasks.copies:
                if self.runner.begin(copy, 0):
                    self.runner.end(*self.runner.running[-1], "done", 0)
        traced = self.trace.check()
        assert not traced.wrong, str(traced)
        self._check()

    def _keys(self) -> list[Any]:
        with self.rows.engine.connect() as connection:
            return list(connection.execute(text(f"SELECT k::text FROM {self.schema}.outbox_keys k")).all())

    def _check(self) -> None:
        delivered = [*self.orders.arrived, *self.runner.began]
        first = {id: n for n, id in enumerate(dict.fromkeys(delivered))}
        wanted = {id for _, id, _ in self.committed}
        archived = {str(row.id): row for row in self.rows.archived()}
        gone = self.discarded | {id for id, row in archived.items() if row.state == "discarded"}
        assert set(first) <= wanted, "sent what was never committed"
        assert not [day for day in self.store.ask("look/books.sql") if day.missing], "the books do not balance"
        stuck = [self.trace.life(row.id) for row in self.rows.hot()]
        assert not stuck, "stuck:\n" + "\n\n".join("\n".join(life) for life in stuck)
        assert not (keys := self._keys()), f"busy, and nothing of them is left: {keys}"
        assert wanted - gone <= set(first), "lost"
        assert wanted == set(archived), "lost"
        for key in {key for *_, key in self.committed if key}:
            mine = sorted((seq, id) for seq, id, own in self.committed if own == key and id in first)
            assert [id for _, id in mine] == sorted((id for _, id in mine), key=first.__getitem__), "overtaken"
        repeated = [id for id, count in Counter(delivered).items() if count > 1]
        said = {id: {entry.get("code") for entry in archived[id].history or ()} - NO_CAUSE for id in repeated}
        assert all(archived[id].last_error_code and said[id] for id in repeated), "repeated without a cause"
