"""What the end of a day of the archive costs the pipe: dropped as a partition, and deleted row by row.

One thread claims without a pause, another begins and settles what was claimed, and a process gets rid of the day.
Compare the longest wait with that of the undisturbed run: a machine does other things too. The server is an embedded
one, unless OUTBOX_DATABASE_URL names another; there the bench keeps to a schema of its own.
"""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import click
from sqlalchemy import create_engine, text

from bench import storage
from bench.fresh import execute, outbox
from bench.report import Figures, Say, bench
from bench.simulate import claimed
from outbox_tasks.database.connection import migrating
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.operating.retention import drop_days, export_days
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

BATCH, DUE, AGO = 100, 4000, 30
FIRST, UNTIL = (storage.TODAY - AGO) << 32, (storage.TODAY - AGO + 1) << 32
"""The numbers of the day that ends."""

SENT = """SELECT :first + n AS seq, {schema}.outbox_uuid7() AS id, now() - interval '30 days' AS created_at,
       'order.created' AS event_type, 'orders' AS destination, 'order:' || n AS key, NULL::jsonb AS headers,
       convert_to(format('{"id": %s, "customer": "%s", "lines": "%s"}', n, md5(n::text), repeat(md5((-n)::text), 7)),
                  'UTF8') AS payload
FROM generate_series(1, :count) n"""

MADE = "SELECT FROM {schema}.outbox_journal WHERE first >= :first AND first < :until LIMIT 1"
DELETED = (
    "DELETE FROM {schema}.outbox_messages WHERE seq >= :first AND seq < :until",
    "DELETE FROM {schema}.outbox_journal WHERE first >= :first AND first < :until",
)


@dataclass
class Waits:
    """How long the pipe's statements took, in milliseconds."""

    claims: list[float] = field(default_factory=list)
    settles: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """What the end of the day cost."""

    def figures(self) -> dict[str, float]:
        """The longest of each, the claims that took longer than 50 ms, and how long the day took to go."""
        late = sum(claim > 50 for claim in self.claims)
        return {
            "seconds": round(self.seconds, 3),
            "claims": len(self.claims),
            "claim p99": round(sorted(self.claims)[int(len(self.claims) * 0.99)], 1),
            "longest claim": round(max(self.claims), 1),
            "claims over 50 ms": late,
            "settle p99": round(sorted(self.settles)[int(len(self.settles) * 0.99)], 1),
            "longest settle": round(max(self.settles), 1),
        }


class Day:
    """One outbox at work."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store.connect(settings)

    def make_day(self, rows: int) -> None:
        """Fill an old day."""
        storage.make_day(self.settings, AGO)
        storage.archive(self.settings, SENT, BATCH, first=FIRST, count=rows)
        # Vacuumed and on the disk, like a day that is a week old.
        engine = create_engine(self.store.engine.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for table in ("messages", "journal"):
                connection.execute(text(f"VACUUM ANALYZE {self.settings.database_schema}.outbox_{table}"))
            connection.execute(text("CHECKPOINT"))
        engine.dispose()

    def while_at_work(self, act: Callable[[Settings], float], seconds: float) -> Waits:
        """Claim and settle for this long, and end the day after one second."""
        waits, over = Waits(), threading.Event()
        begun: queue.Queue[Bundle] = queue.Queue(4)
        threads = [
            threading.Thread(target=work, args=(waits, begun, over))
            for work in (self._claim, self._settle, self._write)
        ]
        for thread in threads:
            thread.start()
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                process.submit(nothing, self.settings).result()  # it has started
                waits.claims.clear()
                waits.settles.clear()
                time.sleep(1)
                waits.seconds = process.submit(act, self.settings).result()
            time.sleep(max(0.0, seconds - 1 - waits.seconds))
        finally:
            over.set()
            for thread in threads:
                thread.join()
        execute(self.settings, "TRUNCATE {schema}.outbox_ready, {schema}.outbox_leases")
        return waits

    def _write(self, waits: Waits, begun: queue.Queue[Bundle], over: threading.Event) -> None:
        while not over.is_set():
            with migrating(self.settings) as connection:
                storage.write(connection, DUE, str(self.settings.database_schema), destination="'orders'")
            over.wait(0.25)

    def _claim(self, waits: Waits, begun: queue.Queue[Bundle], over: threading.Event) -> None:
        while not over.is_set():
            started = time.perf_counter()
            bundles = claimed(self.store, {"orders": BATCH})
            waits.claims.append((time.perf_counter() - started) * 1000)
            for bundle in bundles:
                while not over.is_set():
                    try:
                        begun.put(bundle, timeout=0.1)
                        break
                    except queue.Full:
                        continue
            if not bundles:
                time.sleep(0.002)

    def _settle(self, waits: Waits, begun: queue.Queue[Bundle], over: threading.Event) -> None:
        while not over.is_set():
            try:
                bundle = begun.get(timeout=0.1)
            except queue.Empty:
                continue
            sent = self.store.begin(bundle).values()
            tickets = [Ticket(message.id, message.attempts, message.event_type) for message in sent]
            started = time.perf_counter()
            self.store.settle(bundle.lease, "orders", [Verdict(ticket, Step.SENT) for ticket in tickets])
            waits.settles.append((time.perf_counter() - started) * 1000)


def nothing(settings: Settings) -> float:
    """Do nothing."""
    return 0.0


def dropped(settings: Settings) -> float:
    """As the relay does it. Returns the seconds."""
    pipe = Day(settings)
    started = time.perf_counter()
    done = drop_days(pipe.store, timedelta(days=7))
    assert len(done.dropped) == 1, done
    return time.perf_counter() - started


def deleted(settings: Settings) -> float:
    """By DELETE, as it is usually done."""
    started = time.perf_counter()
    for statement in DELETED:
        execute(settings, statement, first=FIRST, until=UNTIL)
    return time.perf_counter() - started


def exported(settings: Settings) -> float:
    """Written to files and read back, and still there."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        [part] = export_days(Day(settings).store, f"file://{place}")
    assert part.written
    return time.perf_counter() - started


@bench
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of the day.")
@click.option("--seconds", default=12.0, show_default=True, help="How long the pipe is at work each time.")
@click.option("--export", is_flag=True, help="Measure the export of the day too.")
def main(say: Say, rows: int, seconds: float, export: bool) -> list[Figures]:
    """What the end of a day costs the pipe."""
    found: dict[str, dict[str, float]] = {}
    with outbox() as settings:
        run = Day(settings)
        run.while_at_work(nothing, 3)  # warm up
        for name, act in {"exported": exported, "dropped": dropped, "deleted": deleted}.items():
            if act is exported and not export:
                continue
            say(f"a day of {rows:,}, {name}")
            if not execute(settings, MADE, first=FIRST, until=UNTIL):
                run.make_day(rows)
            if not found:
                found["undisturbed"] = run.while_at_work(nothing, seconds).figures()
            found[f"{rows:,} rows {name}"] = run.while_at_work(act, seconds).figures()
        run.store.close()
    return [Figures("the end of a day", found, "milliseconds, but for the seconds that the day took to go")]
