"""Whether the relay recovers after it had almost no processor for a while, with direct dispatch on.

A writer commits messages without a key at a steady rate. All processes of the relay together get a share of one
processor: while they have used more, they stand still (SIGSTOP). It is enough at first, then almost nothing, then what
it was. The table has the messages that wait in the database, and those whose lease ran out in the queue at least once.
The disk is not what is measured: fsync is off.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import psutil
from sqlalchemy import text

from bench.latency import WRITER
from bench.relay import running
from bench.report import Figures, Say, bench
from bench.yardsticks import OtherRelease

TICK = 0.002
"""Seconds between two looks at what the relay has used."""

AHEAD = 0.01
"""Seconds of the processor that it may save up."""

SHORT = {"OUTBOX_QUEUE_LEASE": "5", "OUTBOX_STATEMENT_TIMEOUT": "1", "OUTBOX_SEND_TIMEOUT": "1"}
LEASES: dict[str, dict[str, str]] = {"defaults": {}, "short leases": SHORT}

WAITING = "SELECT count(*) FROM outbox_all WHERE state NOT IN ('sent', 'discarded')"
EXPIRED = """SELECT count(*) FROM outbox_all WHERE last_error_code IN ('lease_expired', 'direct_expired')"""


class Governor:
    """Gives some processes together a share of one processor."""

    def __init__(self, pids: list[int], share: float) -> None:
        self.share = share
        self._processes = [psutil.Process(pid) for pid in pids]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._govern)

    @contextmanager
    def governing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _used(self) -> float:
        """Seconds; `cpu_times` counts only hundredths."""
        return sum(int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[0]) for one in self._processes) / 1e9

    def _govern(self) -> None:
        left, used, now, running = AHEAD, self._used(), time.monotonic(), True
        while not self._over.wait(TICK):
            before_used, used, before, now = used, self._used(), now, time.monotonic()
            left = min(AHEAD, left + (now - before) * self.share - (used - before_used))
            if running and left < 0:
                self._each("suspend")
            elif not running and left > 0:
                self._each("resume")
            running = left > 0 if left else running
        self._each("resume")

    def _each(self, what: str) -> None:
        for one in self._processes:
            with suppress(psutil.NoSuchProcess):
                getattr(one, what)()


class Starvation(OtherRelease):
    """One relay for each kind of leases."""

    def count(self, sql: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(text(sql)))

    def work(
        self, rate: int, share: float, least: float, phases: tuple[float, ...], env: dict[str, str]
    ) -> dict[str, Any]:
        """How many messages wait: before, at the end of the famine, and at times after it."""
        usual, self.environment = self.environment, {**self.environment, **env}
        before, famine, after = phases
        row: dict[str, Any] = {}
        with self.relay(bundle_size=100) as children:
            governor = Governor([child.pid for child in children], share)
            argv = [sys.executable, "-c", WRITER, str(rate), str(sum(phases)), ""]
            with (
                governor.governing(),
                subprocess.Popen(argv, cwd=self.cwd, env=self.environment, stdout=subprocess.DEVNULL) as writer,
            ):
                time.sleep(before)
                row["before"] = self.count(WAITING)
                governor.share = least
                time.sleep(famine)
                row["at its end"] = self.count(WAITING)
                governor.share = share
                began, step = time.monotonic(), max(5.0, after / 8)
                while (elapsed := time.monotonic() - began) < after - 1:
                    time.sleep(min(step, after - elapsed))
                    row[f"+{time.monotonic() - began:.0f} s"] = self.count(WAITING)
                row["leases run out"] = self.count(EXPIRED)
                writer.wait()
            governor.share = 1.0
        self.environment = usual
        return row


@bench
@click.option("--rate", default=100, show_default=True, help="Messages a second.")
@click.option("--share", default="10", show_default=True, help="Percent of a processor, several by commas.")
@click.option("--least", default=1.0, show_default=True, help="Percent during the famine.")
@click.option("--famine", default=30.0, show_default=True, help="Seconds.")
@click.option("--after", default=60.0, show_default=True, help="Seconds.")
@click.option("--leases", default=",".join(LEASES), show_default=True, help="Which, by commas.")
@click.option("--direct/--no-direct", default=True, show_default=True, help="Direct dispatch.")
@click.option("--code", metavar="CHECKOUT", help="Use the relay of another checkout.")
def main(
    say: Say,
    rate: int,
    share: str,
    least: float,
    famine: float,
    after: float,
    leases: str,
    direct: bool,
    code: str | None,
) -> list[Figures]:
    """Recovery after the relay had no processor."""
    found: dict[str, dict[str, Any]] = {}
    for kind in leases.split(","):
        for percent in map(float, share.split(",")):
            with running(Starvation, fsync="off") as run:
                if code is not None:
                    run.move_to(Path(code).absolute())
                say(f"{kind}, {percent:g} %")
                env = {**LEASES[kind], "OUTBOX_DIRECT": str(direct)}
                found[f"{kind}, {percent:g} %"] = run.work(rate, percent / 100, least / 100, (15.0, famine, after), env)
    return [Figures("messages that wait", found)]
