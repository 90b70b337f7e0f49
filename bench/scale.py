"""How the relay grows: more publish workers, more claim workers, and a hundred clients on one database.

- *workers*: drains of the same backlog by 1, 2, 4, 8 publish workers and 1, 2, 4 claim workers. On a few cores the rate
  can't grow with them. But no message may arrive twice, the CPU a message must not grow, and statements must not wait
  for each other. *Lock waits* are the share of running statements that waited for a lock, seen 50 times a second.
- *clients*: 100 publish clients in threads, each with its own connection, to a destination that takes a while for each
  bundle. So one PostgreSQL serves what would be 100 publish processes on many hosts. CPU is that of PostgreSQL alone;
  the statements' times contain the waits of the threads for each other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import click
from sqlalchemy import text

from bench.report import Figures, Say, bench
from outbox_tasks.local.bench import BACKLOG, Bench, cpu_seconds, running
from outbox_tasks.model import Bundle, LeasedMessage, Outcome
from outbox_tasks.relay.claim import bundled
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store

LOOK = 0.02
AT_WORK = """SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*) FROM pg_stat_activity
WHERE application_name = 'outbox_tasks' AND state = 'active'"""
AHEAD = 300
"""Bundles that wait for the clients at most."""


class Slow:
    """A publisher to a destination that takes a while for each bundle."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def publish(self, messages: Sequence[LeasedMessage]) -> list[Outcome]:
        """One outcome per message."""
        time.sleep(self.seconds)
        return [Outcome.sent()] * len(messages)


class Scale(Bench):
    """Drains by so many workers, and by clients without workers."""

    patience = 600.0

    def workers(self, messages: int, publishers: int, claimers: int) -> dict[str, Any]:
        """A drain, and what arrived twice."""
        with self.engine.begin() as connection:
            connection.execute(text("TRUNCATE outbox_messages, outbox_archive"))
        with self._lock_waits() as waits:
            found = self.drain(messages, 100, publishers=publishers, claimers=claimers)
        with self.engine.connect() as connection:
            more = connection.scalar(text("SELECT coalesce(sum(attempts) - count(*), 0) FROM outbox_archive"))
        return {
            "messages/s": found["per_second"],
            "CPU µs each": found["cpu_us"],
            "arrived twice": int(self.stream.xlen("bench")) - messages,
            "attempts beyond the first": int(more),
            "lock waits %": round(100 * waits[0] / max(1, waits[1]), 1),
        }

    @contextmanager
    def _lock_waits(self) -> Iterator[list[int]]:
        """How many statements waited for a lock, and how many were seen."""
        seen, over = [0, 0], threading.Event()

        def look() -> None:
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                while not over.wait(LOOK):
                    waiting, active = connection.execute(text(AT_WORK)).one()
                    seen[0] += waiting
                    seen[1] += active

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield seen
        finally:
            over.set()
            looking.join()

    def clients(self, count: int, bundle: int, send_seconds: float, seconds: float) -> dict[str, Any]:
        """So many clients for so long, of which each send takes `send_seconds`."""
        settings = self.settings.replace(bundle_size=bundle, max_in_flight=1_000_000)
        with self.engine.begin() as connection:
            connection.execute(text("TRUNCATE outbox_messages, outbox_archive"))
            most = min(1_000_000, int(2 * count * bundle * (seconds + 5) / max(send_seconds, 0.05)))
            connection.execute(text(BACKLOG), {"count": most})
        bundles: queue.Queue[Bundle] = queue.Queue(AHEAD)
        over, measuring = threading.Event(), threading.Event()
        done: list[tuple[int, float]] = []

        def claiming() -> None:
            store = Store.connect(settings)
            while not over.is_set():
                lease = str(uuid4())
                rows = store.claim({"bench": 1000}, lease)
                if not rows:
                    over.wait(0.05)
                for made in bundled(settings, rows, lease):
                    while not over.is_set():
                        try:
                            bundles.put(made, timeout=0.1)
                            break
                        except queue.Full:
                            continue
            store.close()

        def publishing() -> None:
            store, slow = Store.connect(settings), Slow(send_seconds)
            while not over.is_set():
                try:
                    made = bundles.get(timeout=0.1)
                except queue.Empty:
                    continue
                began = time.perf_counter()
                verdicts = deliver(store, {"bench": slow}, made)
                if measuring.is_set():
                    done.append((len(verdicts), time.perf_counter() - began - send_seconds))
            store.close()

        threads = [threading.Thread(target=claiming), *(threading.Thread(target=publishing) for _ in range(count))]
        for thread in threads:
            thread.start()
        time.sleep(2 + send_seconds)  # all have connected
        measuring.set()
        postgres, began = cpu_seconds(self.servers[:1]), time.perf_counter()
        time.sleep(seconds)
        measuring.clear()
        elapsed, cpu = time.perf_counter() - began, cpu_seconds(self.servers[:1]) - postgres
        over.set()
        for thread in threads:
            thread.join()
        messages, waits = sum(n for n, _ in done), sorted(took for _, took in done)
        return {
            "messages/s": round(messages / elapsed),
            "PostgreSQL µs each": round(cpu / max(1, messages) * 1e6),
            "statements p50 ms": round(1000 * waits[len(waits) // 2], 1) if waits else None,
            "statements p99 ms": round(1000 * waits[int(len(waits) * 0.99)], 1) if waits else None,
        }


def numbers(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    return [int(one) for one in value.split(",")]


@bench
@click.option("--messages", default=100_000, show_default=True, help="Of each drain.")
@click.option("--publishers", default="1,2,4,8", show_default=True, callback=numbers, help="Publish workers.")
@click.option("--claimers", default="1,2,4", show_default=True, callback=numbers, help="Claim workers.")
@click.option("--clients", default="2,20,100", show_default=True, callback=numbers, help="Publish clients in threads.")
@click.option("--seconds", default=10.0, show_default=True, help="For which the clients work.")
def main(
    say: Say, messages: int, publishers: list[int], claimers: list[int], clients: list[int], seconds: float
) -> list[Figures]:
    """More publish workers, more claim workers, more clients."""
    workers: dict[str, dict[str, Any]] = {}
    simulated: dict[str, dict[str, Any]] = {}
    with running(Scale, max_connections="300") as run:
        for count in publishers:
            say(f"{count} publish workers")
            workers[f"{count} publish, 1 claim"] = run.workers(messages, count, 1)
        for count in claimers:
            if count > 1:
                say(f"{count} claim workers")
                workers[f"2 publish, {count} claim"] = run.workers(messages, 2, count)
        for count in clients:
            for bundle, send in ((100, 1.0), (1, 0.25)):
                say(f"{count} clients, bundles of {bundle}")
                name = f"{count} clients, bundles of {bundle}, sends of {send:g} s"
                simulated[name] = run.clients(count, bundle, send, seconds)
    return [Figures("workers", workers), Figures("simulated", simulated)]
