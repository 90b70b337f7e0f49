"""What a claim costs as there are more destinations, and as the tables fill.

One message for each of ten destinations is due; the claim is woken and takes them, two publish workers send them. CPU
is that of the claim worker and of its connection's process, from the wake until all have ended: the median of many
turns, which all outboxes take one after the other. *Alone* has these ten destinations and nothing else. Another outbox
has 10,000, then also a backlog of a paused destination, then also as many messages that were sent before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil
from sqlalchemy import text

from bench.relay import CLAIM, OURS, Bench, running
from bench.report import Figures, Say, bench
from outbox_tasks.local.processes import Child

DUE, MANY, WARM = 10, 10_000, 10
QUIET = 0.03
"""Seconds for which no claim waits after the last one of a turn."""

ALONE, AMONG = "alone", f"of {MANY:,} destinations"
PAUSED, BEFORE = "d10", "d11"
SERVER = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE client_port = ANY (:ports)"


class Claims(Bench):
    """A relay whose claim worker is watched."""

    def start(self, stack: ExitStack, destinations: int) -> None:
        """Start it with so many destinations."""
        self.know(self.streams(*(f"d{n}" for n in range(destinations))))
        self.children: list[Child] = stack.enter_context(self.relay())

    def turn(self) -> tuple[float, float]:
        """CPU of the claim worker, and of its connections, in µs."""
        self.write(DUE, destination=f"'d' || n % {DUE}")
        claim = self.children[0].pid
        backends = self._backends(claim)
        before = cpu_us([claim]), cpu_us(backends)
        self.wake()
        self.wait_for(self._is_over, "the turn is over")
        return cpu_us([claim]) - before[0], cpu_us(backends) - before[1]

    def _is_over(self) -> bool:
        if self._left():
            return False
        time.sleep(QUIET)
        return not self.broker.llen(CLAIM)

    def _left(self) -> bool:
        statement = "SELECT EXISTS (SELECT FROM outbox_at_work WHERE place <> 'dead' AND destination <> :paused)"
        with self.engine.connect() as connection:
            return bool(connection.scalar(text(statement), {"paused": PAUSED}))

    def _backends(self, pid: int) -> list[int]:
        ports = [one.laddr.port for one in psutil.Process(pid).net_connections(kind="tcp")]
        with self.engine.connect() as connection:
            return list(connection.scalars(text(BACKENDS), {"ports": ports}))

    def fill(self, count: int) -> None:
        """A backlog that stays."""
        self.command("pause", PAUSED)
        self.write(count, destination=f"'{PAUSED}'")
        self._vacuum()

    def send(self, count: int) -> None:
        """Messages that are sent, and stay in the archive."""
        self.write(count, destination=f"'{BEFORE}'")
        self.wake()
        self.wait_for(lambda: not self._left(), "they are sent")
        self.stream.flushdb()
        self._vacuum()

    def _vacuum(self) -> None:
        """As autovacuum soon does."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (ANALYZE)"))
            connection.execute(text("CHECKPOINT"))


def cpu_us(pids: list[int]) -> float:
    """What all threads of these processes have had. From `schedstat(5)` of Linux, in nanoseconds."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1000


def taken(runs: Mapping[str, Claims], turns: int) -> dict[str, tuple[float, float]]:
    """The medians of each run. They take turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(turns + WARM):
        for name, run in runs.items():
            spent = run.turn()
            if turn >= WARM:
                found[name].append(spent)
    return {name: (median(a for a, _ in each), median(b for _, b in each)) for name, each in found.items()}


@bench
@click.option("--turns", default=60, show_default=True, help="Claims of each outbox.")
@click.option("--rows", default=500_000, show_default=True, help="Of the backlog, and as many sent before; 0: neither.")
def main(say: Say, turns: int, rows: int) -> list[Figures]:
    """A claim among many destinations and rows."""
    figures: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        runs = {}
        for name, count in ((ALONE, DUE), (AMONG, MANY)):
            say(f"{count} destinations")
            runs[name] = stack.enter_context(running(Claims, OURS, **SERVER))
            runs[name].start(stack, count)

        def measure(name: str) -> None:
            say(name)
            found = taken(runs, turns)
            alone, among = sum(found[ALONE]), sum(found[AMONG])
            figures.setdefault(ALONE, _row(found[ALONE]))
            figures[name] = {**_row(found[AMONG]), "÷ alone": round(among / alone, 2), "aim": "≤ 1.5"}

        measure(AMONG)
        for name, fill in ((f"and {rows:,} of a paused one", Claims.fill), (f"and {rows:,} sent", Claims.send)):
            if rows:
                say(name)
                fill(runs[AMONG], rows)
                measure(name)
    return [Figures(f"a claim of {DUE} messages", figures)]


def _row(spent: tuple[float, float]) -> dict[str, Any]:
    return {"CPU µs": round(sum(spent)), "worker": round(spent[0]), "PostgreSQL": round(spent[1])}
