"""A hundred publish clients on one PostgreSQL, as threads of one process.

Each client has its own connection, and runs the statements of the relay: begin and settle, around a send that takes a
while. One claim client, or four, lease for all of them. They connect directly, or through PgBouncer in transaction mode
with 20 connections to the server: if it is installed, and before its version 1.21 without prepared statements. CPU is
that of PostgreSQL alone. The times of the statements contain the waits of the threads for each other. *Begun twice*:
attempts beyond the first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import click
from sqlalchemy import event, text

from bench import storage
from bench.relay import Bench, cpu_seconds, running
from bench.report import Figures, Say, bench
from lab import pgbouncer
from outbox_tasks.database.connection import PLANNING
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.model import Bundle, LeasedMessage, Outcome
from outbox_tasks.relay.claim import SPREAD, bundled
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

AHEAD = 300
"""Bundles that wait for the clients at most."""
POOLER = {"pool_mode": "transaction", "default_pool_size": 20, "max_client_conn": 1000}
PREPARING = (1, 21)
"""The first version of PgBouncer that knows prepared statements."""


class Slow:
    """A publisher to a destination that takes a while for each bundle."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One outcome per message."""
        time.sleep(self.seconds)
        return [Outcome.sent()] * len(messages)

    def close(self) -> None:
        """There is nothing to close."""


def claimed(store: Store, shares: Mapping[str, int], *, spread: int = 1) -> list[Bundle]:
    """Claim, and pack what was claimed into at least `spread` bundles, as the relay does."""
    lease = str(uuid4())
    return store.claim(shares, lease, lambda rows: list(bundled(store.settings, rows, lease, spread=spread)))[1]


@dataclass
class Clients:
    """Threads that claim, and threads that deliver."""

    settings: Settings
    send_seconds: float
    bundles: queue.Queue[Bundle] = field(default_factory=lambda: queue.Queue(AHEAD))
    over: threading.Event = field(default_factory=threading.Event)
    done: list[tuple[int, float]] = field(default_factory=list)
    """How many messages each bundle had, and the seconds of its statements."""

    def _connected(self) -> Store:
        store = Store.connect(self.settings)
        if not self.settings.statement_timeout and pgbouncer.version() < PREPARING:

            @event.listens_for(store.engine, "connect")
            def unprepared(connection: Any, _: object) -> None:
                connection.prepare_threshold = None

        return store

    def claim(self) -> None:
        store = self._connected()
        while not self.over.is_set():
            bundles = claimed(store, {"bench": 1000}, spread=SPREAD)
            if not bundles:
                self.over.wait(0.05)
            for bundle in bundles:
                self._offer(bundle)
        store.close()

    def _offer(self, made: Bundle) -> None:
        waits = True
        while waits and not self.over.is_set():
            with suppress(queue.Full):
                self.bundles.put(made, timeout=0.1)
                waits = False

    def publish(self) -> None:
        store, slow = self._connected(), Slow(self.send_seconds)
        while not self.over.is_set():
            try:
                made = self.bundles.get(timeout=0.1)
            except queue.Empty:
                continue
            began = time.perf_counter()
            with suppress(DatabaseUnavailable):  # on a machine that is too busy to connect in time
                verdicts = deliver(store, {"bench": slow}, made)
                self.done.append((len(verdicts), time.perf_counter() - began - self.send_seconds))
        store.close()


class Simulation(Bench):
    """One PostgreSQL; no workers."""

    def work(self, settings: Settings, count: int, claimers: int, send: float, seconds: float) -> dict[str, Any]:
        """So many clients for so long, of which each send takes `send` seconds."""
        storage.clear(self.settings)
        self.write(min(1_000_000, int(2 * count * settings.bundle_size * (seconds + 5) / send)))
        clients = Clients(settings, send)
        threads = [threading.Thread(target=clients.claim) for _ in range(claimers)]
        threads += [threading.Thread(target=clients.publish) for _ in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(2 + send)  # all have connected
        clients.done.clear()
        postgres, began = cpu_seconds(self.servers[:1]), time.perf_counter()
        time.sleep(seconds)
        done, elapsed = clients.done.copy(), time.perf_counter() - began
        cpu, connections = (
            cpu_seconds(self.servers[:1]) - postgres,
            self._number("SELECT count(*) FROM pg_stat_activity"),
        )
        clients.over.set()
        for thread in threads:
            thread.join()
        messages, waits = sum(n for n, _ in done), sorted(took for _, took in done)
        return {
            "messages/s": round(messages / elapsed),
            "PostgreSQL µs each": round(cpu / max(1, messages) * 1e6),
            "statements p50 ms": round(1000 * waits[len(waits) // 2], 1) if waits else None,
            "statements p99 ms": round(1000 * waits[int(len(waits) * 0.99)], 1) if waits else None,
            "server processes": connections,
            "begun twice": self._number("SELECT coalesce(sum(attempts), 0) FROM outbox_trouble"),
        }

    def _number(self, sql: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(text(sql)))

    @contextmanager
    def pooled(self) -> Iterator[Settings]:
        """The settings behind PgBouncer: see docs/settings.md."""
        prepared = {"max_prepared_statements": 100} if pgbouncer.version() >= PREPARING else {}
        with pgbouncer.PgBouncer(str(self.settings.database_url), **POOLER, **prepared) as pooler:
            with self.engine.begin() as connection:
                for name, value in {**PLANNING, "statement_timeout": "3s"}.items():
                    connection.execute(text(f"ALTER ROLE CURRENT_USER SET {name} = '{value}'"))
            yield self.settings.replace(database_url=pooler.url, statement_timeout=0)


@bench
@click.option("--clients", default=100, show_default=True, help="Publish clients.")
@click.option("--seconds", default=10.0, show_default=True, help="For which each kind works.")
def main(say: Say, clients: int, seconds: float) -> list[Figures]:
    """A hundred publish clients on one PostgreSQL."""
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        run = stack.enter_context(running(Simulation, max_connections="300", shared_buffers="512MB"))
        ways = {"": run.settings}
        if pgbouncer.PROGRAM is not None:
            ways[", PgBouncer"] = stack.enter_context(run.pooled())
        for bundle, send in ((100, 1.0), (1, 0.25)):
            for way, settings in ways.items():
                for claimers in (1, 4):
                    name = f"bundles of {bundle}, {claimers} claiming{way}"
                    say(name)
                    given = settings.replace(bundle_size=bundle, max_in_flight=1_000_000)
                    found[name] = run.work(given, clients, claimers, send, seconds)
    return [Figures(f"{clients} clients, sends of 1 s (bundles) and 0.25 s", found)]
