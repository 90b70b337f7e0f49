"""The order of each key, whatever happens: kill -9 of publish workers, a broker that forgets everything, leases that
run out in a worker that hangs, a destination that fails or waits now and then, and writers that overlap all the while.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Relay, Worker
from tests.conftest import Rows, Stream, eventually, own_stream
from tests.fault.conftest import check, drained

SEED = 20_261_018
KEYS, WRITERS, MOST = 250, 4, 8
"""Keys, threads that write, and messages of one transaction."""

WITHDRAWN, LONG, FAILING = 0.15, 0.05, 0.02
"""The shares of transactions that are rolled back and that take long, and of messages that the destination refuses
once."""

PAUSE = (0.4, 1.0)
"""Seconds between two faults."""

BRIEF = 400
"""Milliseconds for which the destination waits with its answers: less than a send may take."""

HELD = 8.5
"""Seconds for which a worker hangs: longer than any lease."""


@pytest.fixture
def stream() -> Iterator[Stream]:
    """The destination, on a server of its own that may be made to wait."""
    with EmbeddedValkey() as server, own_stream(server.url) as made:
        yield made


@pytest.fixture
def values(values: dict[str, Any]) -> dict[str, Any]:
    """A destination that was out of reach is soon tried again. One destination gets singles only."""
    told = {**values["destinations"]["told"], "singles": "all"}
    return {**values, "breaker_pause": 0.1, "destinations": {**values["destinations"], "told": told}}


class Withdrawn(Exception):
    """The application rolls back after it has written."""


class Writers:
    """The application: transactions of many threads, each with several keys in any order, open at the same time."""

    def __init__(self, relay: Relay, engine: Engine) -> None:
        self.committed: list[str] = []
        """In the order in which the writers learned of it."""
        self.withdrawn: list[str] = []
        self._outbox = Outbox(relay.settings)
        self._engine = engine
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(SEED + n,), daemon=True) for n in range(WRITERS)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Until the end of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
            assert all(thread.is_alive() for thread in self._threads)
        finally:
            self._enough.set()
            for thread in self._threads:
                thread.join(30)

    def _write(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._enough.is_set():
            made: list[str] = []
            try:
                with Session(self._engine) as session, session.begin():
                    self._transaction(session, chance, made)
            except Withdrawn:
                self.withdrawn += made
            else:
                self.committed += made
            time.sleep(chance.uniform(0, 0.05))  # for life to go on while things fail

    def _transaction(self, session: Session, chance: random.Random, made: list[str]) -> None:
        for _ in range(chance.randint(1, MOST)):
            key = f"order:{int(KEYS * chance.random() ** 3)}"
            payload = {"fail": 1} if chance.random() < FAILING else {}
            made.append(str(self._outbox.publish(session, "order.created", payload, key=key, to="told")))
            time.sleep(chance.uniform(0, 0.02))  # for the others to write in between
        if chance.random() < LONG:
            time.sleep(0.5)
        if chance.random() < WITHDRAWN:
            raise Withdrawn


class Faults:
    """What goes wrong with the relay's processes and its broker; whatever ends comes back as under a supervisor."""

    def __init__(self, relay: Relay, broker: EmbeddedValkey, rows: Rows, stream: Stream) -> None:
        self._chance = random.Random(SEED)
        self._broker, self._rows, self._stream = broker, rows, stream
        self._publishers = [relay.publish(n, concurrency=2) for n in range(2)]
        self._other = relay.publish(len(self._publishers))
        relay.claim()
        relay.beat()
        relay.ready()

    def happen(self) -> int:
        """All of them several times, while one more worker hangs for longer than its leases. Returns how many."""
        kinds: Sequence[Callable[[], None]] = (self._worker, self._child, self._broker_forgets)
        rounds = [kind for _ in range(3) for kind in self._chance.sample(kinds, len(kinds))]
        with self._hanging():
            for fault in rounds:
                time.sleep(self._chance.uniform(*PAUSE))
                fault()
        time.sleep(max(PAUSE))  # for what had hung to do harm
        return len(rounds)

    def _worker(self) -> None:
        with self._sending(*self._publishers) as child:
            [worker] = [one for one in self._publishers if child.ppid() == one.pid]
            children = worker.container.pool()
            worker.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        worker.container.restart()

    def _child(self) -> None:
        with self._sending(*self._publishers) as child, suppress(psutil.NoSuchProcess):  # it may just have ended
            child.kill()

    def _broker_forgets(self) -> None:
        with Stream(self._broker.url, "any").client as client:
            client.flushall()

    @contextmanager
    def _hanging(self) -> Iterator[None]:
        """A worker stands still in the middle of a send, and goes on later."""
        with self._sending(self._other) as child:
            processes = [psutil.Process(self._other.pid), child]
            for process in processes:
                process.suspend()
        ends = time.monotonic() + HELD
        yield
        time.sleep(max(0.0, ends - time.monotonic()))
        for process in processes:
            process.resume()

    @contextmanager
    def _sending(self, *workers: Worker) -> Iterator[psutil.Process]:
        """A process of theirs that is in the middle of a send: the destination waits with its answer until the end."""

        def caught() -> psutil.Process | None:
            pools = {child.pid: child for worker in workers for child in worker.container.pool()}
            self._pause()
            ends = time.monotonic() + BRIEF / 1000
            while time.monotonic() < ends:
                if found := pools.keys() & self._senders():
                    self._pause()
                    return pools[found.pop()]
                time.sleep(0.02)
            return None

        try:
            yield eventually(caught)
        finally:
            self._stream.client.client_unpause()

    def _pause(self) -> None:
        self._stream.client.client_pause(BRIEF, all=False)

    def _senders(self) -> set[int]:
        """The processes that have begun a send."""
        m = self._rows.tables.messages
        with self._rows.engine.connect() as connection:
            holders = connection.scalars(select(m.c.locked_by).where(m.c.begun_at.is_not(None))).all()
        return {int(holder.rpartition(":")[2]) for holder in holders}


Numbers = dict[str, tuple[str, int]]
"""For each message its key, and its number within the key."""


def by_key(ids: Iterable[str], numbers: Numbers) -> dict[str, list[int]]:
    """The numbers of each key as these messages have them, each the first time only."""
    found: dict[str, list[int]] = defaultdict(list)
    for id in dict.fromkeys(ids):
        key, seq = numbers[id]
        found[key].append(seq)
    return found


def out_of_order(found: dict[str, list[int]]) -> dict[str, list[tuple[int, int]]]:
    """The keys whose numbers don't rise, with those that are the wrong way round."""
    wrong = {key: [(one, other) for one, other in pairwise(some) if one > other] for key, some in found.items()}
    return {key: pairs for key, pairs in wrong.items() if pairs}


@pytest.mark.timeout(300)
def test_every_key_keeps_its_order(
    relay: Relay, rows: Rows, engine: Engine, stream: Stream, own_redis: EmbeddedValkey
) -> None:
    faults = Faults(relay, own_redis, rows, stream)
    writers = Writers(relay, engine)
    with writers.at_work():
        eventually(lambda: len(stream) > 100)
        count = faults.happen()
    drained(rows)
    repeated = check(rows, stream, writers.committed)
    assert writers.withdrawn  # of which nothing has arrived, or the check would have told
    numbers = {str(row.id): (row.key, row.seq) for row in rows.archived()}
    overlapping = out_of_order(by_key(writers.committed, numbers))
    assert sum(map(len, overlapping.values())) >= 10, "transactions hardly overlapped: this would prove nothing"
    assert not out_of_order(by_key(stream.ids(), numbers))
    causes = Counter(row.last_error_code for row in rows.archived() if row.last_error_code)
    assert {"told", "unsettled", "lease_expired"} <= causes.keys(), "faults that did not strike"
    print(
        json.dumps(
            {
                "committed": len(writers.committed), "withdrawn": len(writers.withdrawn), "repeated": repeated,
                "faults": count, "keys_that_overlapped": len(overlapping), **causes,
            }
        )
    )  # fmt: skip
