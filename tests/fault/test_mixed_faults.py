"""All kinds of faults at once, on a machine with much to do: nothing is lost, no message of a key arrives behind a
later one, and each repetition has its cause on the row.

Workers, their processes, the broker, the database and its backends are killed; connections fall silent, processes stand
still and go on later as if nothing were. MIXED_FAULTS_SECONDS makes the run longer, MIXED_FAULTS_SEED another one, and
with MIXED_FAULTS_LEASES=long the leases are those of the default settings.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox_tasks import Message, Outbox
from outbox_tasks.database.connection import engine_url
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from tests.acceptance.nodes import Beat, Relay, Worker
from tests.conftest import Stream, eventually
from tests.fault.conftest import SHORT, OwnDatabase, check
from tests.fault.test_order import by_key, out_of_order
from tests.proxy import Proxy

LASTS = float(os.environ.get("MIXED_FAULTS_SECONDS", "10"))
SEED = int(os.environ.get("MIXED_FAULTS_SEED", "20261122"))
LONG_LEASES = os.environ.get("MIXED_FAULTS_LEASES") == "long"
PAUSE = (4.0, 6.0) if LONG_LEASES else (0.5, 1.5)
"""Seconds between two faults."""

STANDS_STILL = (0.5, 11.0)
"""Seconds for which something hangs: less than a lease, or more."""

KEYS, WRITERS, MOST, BUSY = 60, 4, 25, 3
"""Keys, threads that write, messages of one transaction, and processes that do nothing but keep the machine busy."""


def through(url: str, proxy: Proxy) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{proxy.port}")).geturl()


@pytest.fixture
def to_broker(own_redis: EmbeddedValkey) -> Iterator[Proxy]:
    with Proxy(own_redis.port) as proxy:
        yield proxy


@pytest.fixture
def to_database(own_postgres: EmbeddedPostgres) -> Iterator[Proxy]:
    with Proxy(own_postgres.port) as proxy:
        yield proxy


@pytest.fixture
def values(values: dict[str, Any], own_redis: EmbeddedValkey, to_broker: Proxy) -> dict[str, Any]:
    """The workers reach their broker through the proxy."""
    kept = {name: value for name, value in values.items() if name not in SHORT} if LONG_LEASES else values
    return {**kept, "broker_url": through(own_redis.url, to_broker)}


class Writers:
    """The application: runs of messages of several keys, by many threads, whatever happens to its database."""

    def __init__(self, relay: Relay, database: OwnDatabase) -> None:
        self.committed: dict[str, float] = {}
        """When, as the writer learned of it."""
        self.unknown: dict[str, float] = {}
        """Their commit was cut off: nobody can say whether it happened, but the database."""
        self._outbox = Outbox(relay.settings)
        self._engine = create_engine(engine_url(database.server.url), pool_pre_ping=True)
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(SEED + n,), daemon=True) for n in range(WRITERS)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._enough.set()
            for thread in self._threads:
                thread.join(30)
            self._engine.dispose()

    def _write(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._enough.is_set():
            made: list[str] = []
            try:
                with Session(self._engine) as session, session.begin():
                    for _ in range(chance.randint(1, 3)):
                        key = f"order:{int(KEYS * chance.random() ** 2)}"
                        messages = [Message("order.created", {}, key=key, to="orders")] * chance.randint(1, MOST)
                        made += map(str, self._outbox.publish_many(session, messages))
                self.committed |= dict.fromkeys(made, time.time())
            except DBAPIError:
                self.unknown |= dict.fromkeys(made, time.time())
            time.sleep(chance.uniform(0.05, 0.2))


class Faults:
    """What goes wrong; whatever ends comes back as under a supervisor."""

    def __init__(
        self, relay: Relay, database: OwnDatabase, broker: EmbeddedValkey, to_broker: Proxy, to_database: Proxy
    ) -> None:
        self.chance = random.Random(SEED)
        self._database, self._broker, self._to_broker, self._to_database = database, broker, to_broker, to_database
        self._claims = [relay.claim(f"claim{n}") for n in range(2)]
        self._publishers = [relay.publish(n, concurrency=2) for n in range(2)]
        self._beat = relay.beat()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self.count: Counter[str] = Counter()
        self.kinds = [
            self.child_killed, self.child_killed, self.worker_killed, self.claim_killed, self.backend_killed,
            self.database_killed, self.broker_killed, self.broker_forgets, self.broker_silent, self.database_silent,
            self.child_frozen, self.worker_frozen, self.backend_frozen, self.beat_killed,
        ]  # fmt: skip

    def happen(self, seconds: float) -> None:
        ends, rounds = time.monotonic() + seconds, []
        while time.monotonic() < ends:
            rounds = rounds or self.chance.sample(self.kinds, len(self.kinds))
            fault = rounds.pop()
            self.wait(self.chance.uniform(*PAUSE))
            with suppress(psutil.NoSuchProcess, IndexError, ProcessLookupError, DBAPIError):
                fault()
                self.count[fault.__name__] += 1
        while self._later:
            self.wait(0.1)

    def wait(self, seconds: float) -> None:
        """What hangs goes on when its time has come, and what has ended by itself is started again."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.supervise()
            for due, act in [one for one in self._later if one[0] <= time.monotonic()]:
                self._later.remove((due, act))
                with suppress(psutil.NoSuchProcess):
                    act()
            time.sleep(0.05)

    def supervise(self) -> None:
        for node in (*self._claims, *self._publishers, self._beat):
            if node.container.status == "exited":
                node.container.restart()

    def _until_later(self, act: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + self.chance.uniform(*STANDS_STILL), act))

    def _restart(self, node: Worker | Beat) -> None:
        node.kill()
        node.container.restart()

    def _child(self) -> psutil.Process:
        return self.chance.choice(self.chance.choice(self._publishers).container.pool())

    def child_killed(self) -> None:
        self._child().kill()

    def child_frozen(self) -> None:
        child = self._child()
        child.suspend()
        self._until_later(child.resume)

    def worker_killed(self) -> None:
        worker = self.chance.choice(self._publishers)
        children = worker.container.pool()
        self._restart(worker)
        for child in children[:1]:  # the other one ends its send
            child.kill()

    def worker_frozen(self) -> None:
        process = psutil.Process(self.chance.choice(self._publishers).pid)
        process.suspend()
        self._until_later(process.resume)

    def claim_killed(self) -> None:
        self._restart(self.chance.choice(self._claims))

    def beat_killed(self) -> None:
        self._restart(self._beat)

    def _backend(self) -> psutil.Process:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'outbox_tasks' ORDER BY pid"
        with self._database.engine.connect() as connection:
            return psutil.Process(self.chance.choice(list(connection.scalars(text(query)))))

    def backend_killed(self) -> None:
        """PostgreSQL then ends all its processes, and recovers from its log."""
        self._backend().kill()

    def backend_frozen(self) -> None:
        backend = self._backend()
        backend.suspend()
        self._until_later(backend.resume)

    def database_killed(self) -> None:
        self._database.server.kill()
        self._database.server.start()

    def broker_killed(self) -> None:
        self._broker.kill()
        self._broker.start()

    def broker_forgets(self) -> None:
        with Stream(self._broker.url, "any").client as client:
            client.flushall()

    def broker_silent(self) -> None:
        self._to_broker.silence()
        self._until_later(self._to_broker.resume)

    def database_silent(self) -> None:
        self._to_database.silence()
        self._until_later(self._to_database.resume)


def nothing_is_left(faults: Faults, database: OwnDatabase) -> bool:
    faults.supervise()
    with suppress(DBAPIError):  # the server may still recover from the last fault
        return not database.rows.pending()
    return False


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that always have something to do."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


@pytest.mark.timeout(180 + 3 * LASTS)
def test_under_all_faults_at_once_nothing_is_lost_or_overtaken(
    relay_on_own: Relay,
    database: OwnDatabase,
    own_redis: EmbeddedValkey,
    to_broker: Proxy,
    to_database: Proxy,
    stream: Stream,
) -> None:
    relay_on_own.values["database_url"] = through(database.server.url, to_database)
    faults = Faults(relay_on_own, database, own_redis, to_broker, to_database)
    relay_on_own.ready()
    writers = Writers(relay_on_own, database)
    with busy(BUSY):
        with writers.at_work():
            eventually(lambda: len(stream) > 100, 60)
            faults.happen(LASTS)
        began = time.monotonic()
        eventually(lambda: nothing_is_left(faults, database), 120 + LASTS)
        drained_in = time.monotonic() - began
    rows = database.rows.archived()
    stored = {str(row.id) for row in rows}
    committed = {**writers.committed, **{id: at for id, at in writers.unknown.items() if id in stored}}
    numbers = {str(row.id): (row.key, row.seq) for row in rows}
    arrived: dict[str, float] = {}
    for number, fields in stream.client.xrange(stream.name):  # type: ignore[union-attr]
        arrived.setdefault(fields[b"ce_id"].decode(), int(number.partition(b"-")[0]) / 1000)
    waits = sorted(arrived[id] - at for id, at in committed.items() if id in arrived)
    overtaken = out_of_order(by_key((id for id in stream.ids() if id in numbers), numbers))
    print(
        json.dumps(
            {
                "committed": len(committed), "overtaken": sum(map(len, overtaken.values())), "faults": faults.count,
                "median": round(statistics.median(waits), 2), "p95": round(waits[int(len(waits) * 0.95)], 2),
                "max": round(waits[-1], 2), "drained_in": round(drained_in, 1),
                **Counter(row.last_error_code for row in rows if row.last_error_code),
            }
        )
    )  # fmt: skip
    assert not overtaken
    repeated = check(database.rows, stream, list(committed))
    print(json.dumps({"repeated": repeated}))
