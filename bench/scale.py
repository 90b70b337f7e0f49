"""More publish workers, more claim workers, and what its processes keep in memory.

- *workers*: drains of the same backlog by 1, 2, 4, 8 publish workers and 1, 2, 4 claim workers, with the most also
  over 10,000 keys. On a few cores the rate can't grow with them. But no message may arrive twice or out of order, the
  CPU a message must not grow, and statements must not wait for each other. *Lock waits* are the share of running
  statements that waited for a lock, seen 50 times a second.
- *memory*: the private memory of each process (USS) while many messages go through one relay, written in portions.

The servers are embedded ones, with 512 MB of `shared_buffers`.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import psutil
from sqlalchemy import text

from bench.order import NONE, SKEWED, Keyed
from bench.relay import running
from bench.report import Figures, Say, bench

LOOK = 0.02
AT_WORK = """SELECT count(*) FILTER (WHERE wait_event_type = 'Lock'), count(*),
       string_agg(wait_event, ',') FILTER (WHERE wait_event_type = 'Lock')
FROM pg_stat_activity WHERE application_name = 'outbox_tasks' AND state = 'active'"""
PORTIONS = 10


class Scale(Keyed):
    """Drains by so many workers."""

    def workers(self, messages: int, publishers: int, claimers: int, key: str) -> dict[str, Any]:
        """A drain, and what arrived twice or out of order."""
        with self.relay(100, publishers, claimers) as workers, self._lock_waits() as waits:
            found = self.delivered(workers, messages, key)
        with self.engine.connect() as connection:
            more = connection.scalar(text("SELECT coalesce(sum(attempts), 0) FROM outbox_trouble"))
        return {
            "messages/s": found["per_second"],
            "CPU µs each": found["cpu_us"],
            "arrived twice": int(self.stream.xlen("bench")) - messages,
            "missing or out of order": found["wrong"],
            "begun twice": int(more),
            "lock waits %": round(100 * waits["waiting"] / max(1, waits["active"]), 1),
            "most for": next((event for event, _ in waits.most_common() if event not in ("waiting", "active")), ""),
        }

    @contextmanager
    def _lock_waits(self) -> Iterator[Counter[str]]:
        """How many statements waited for a lock, how many were seen, and which locks these were."""
        seen, over = Counter[str](), threading.Event()

        def look() -> None:
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                while not over.wait(LOOK):
                    waiting, active, events = connection.execute(text(AT_WORK)).one()
                    seen["waiting"] += waiting
                    seen["active"] += active
                    seen.update(events.split(",") if events else ())

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield seen
        finally:
            over.set()
            looking.join()

    def memory(self, messages: int, say: Say) -> dict[str, Any]:
        """Megabytes of each process after each portion of the messages."""
        found: dict[str, list[float]] = defaultdict(list)
        with self.relay(bundle_size=100) as workers:
            names = ["claim worker", "publish worker 1", "publish worker 2"]
            for portion in range(PORTIONS):
                say(f"memory: portion {portion + 1} of {PORTIONS}")
                self.delivered(workers, messages // PORTIONS, NONE)
                for name, worker in zip(names, workers, strict=False):
                    found[name].append(megabytes([psutil.Process(worker.pid)]))
                found["PostgreSQL, all processes"].append(
                    megabytes(psutil.Process(self.servers[0]).children(recursive=True))
                )
        return {
            name: {
                "after a tenth, MB": round(sizes[0], 1),
                "after half, MB": round(sizes[PORTIONS // 2 - 1], 1),
                "after all, MB": round(sizes[-1], 1),
                "portions": [round(size, 1) for size in sizes],
            }
            for name, sizes in found.items()
        }


def megabytes(processes: list[psutil.Process]) -> float:
    """Memory that the processes share with nobody."""
    return float(sum(process.memory_full_info().uss for process in processes if process.is_running())) / 1e6


def numbers(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    return [int(one) for one in value.split(",")]


@bench
@click.option("--messages", default=50_000, show_default=True, help="Of each drain.")
@click.option("--publishers", default="1,2,4,8", show_default=True, callback=numbers, help="Publish workers.")
@click.option("--claimers", default="1,2,4", show_default=True, callback=numbers, help="Claim workers.")
@click.option("--memory", default=500_000, show_default=True, help="Messages while the memory is looked at; 0: none.")
def main(say: Say, messages: int, publishers: list[int], claimers: list[int], memory: int) -> list[Figures]:
    """More publish workers, more claim workers, more messages."""
    pairs = [*((count, 1) for count in publishers), *((2, count) for count in claimers if count > 1)]
    most = [(max(publishers), 1), (2, max(claimers))]
    drains: dict[str, dict[str, Any]] = {}
    tables = []
    with running(Scale, max_connections="300", shared_buffers="512MB", max_wal_size="4GB") as run:
        for name, key, each in (("", NONE, pairs), (", 10,000 keys", SKEWED, most)):
            for count, claiming in each:
                row = f"{count} publish, {claiming} claim{name}"
                say(row)
                drains[row] = run.workers(messages, count, claiming, key)
        tables.append(Figures("workers", drains))
        if memory:
            tables.append(Figures(f"memory over {memory:,} messages", run.memory(memory, say)))
    return tables
