"""The CPU that an idle relay takes: a claim worker, a publish worker with one process, beat.

They run as `outbox-tasks up` starts them, with task events.
Below, how long `outbox-tasks` takes from its start to its end.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import click
import psutil

from bench.relay import Bench, cpu_seconds, running
from bench.report import Figures, Say, bench

SETTLE = 10.0
"""Seconds until what they do once, at their start, is done."""

PROCESSES = ("claim worker", "publish worker", "beat")
COMMANDS = (["--help"], ["status"], ["list"])
STARTS = 5


class Idle(Bench):
    """A relay without messages."""

    def shares(self, seconds: float) -> dict[str, dict[str, Any]]:
        """Each process's share of a core."""
        with self.relay(publishers=1, processes=1, events=True) as children:
            time.sleep(SETTLE)
            return self._shares(dict(zip(PROCESSES, (child.pid for child in children), strict=True)), seconds)

    def _shares(self, relay: dict[str, int], seconds: float) -> dict[str, dict[str, Any]]:
        pids = relay | {"PostgreSQL": self.servers[0], "Redis (Valkey)": self.servers[1]}
        began = time.monotonic()
        before = {name: (cpu_seconds([pid]), _wakeups(pid)) for name, pid in pids.items()}
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        rows: dict[str, dict[str, Any]] = {
            name: {
                "% of a core": round(100 * (cpu_seconds([pid]) - before[name][0]) / elapsed, 2),
                "wake-ups/s": round((_wakeups(pid) - before[name][1]) / elapsed, 1),
            }
            for name, pid in pids.items()
        }
        shares = {name: row["% of a core"] for name, row in rows.items()}
        rows["relay"] = {"% of a core": round(sum(shares[name] for name in relay), 2), "aim": "≤ 1"}
        rows["relay and servers"] = {"% of a core": round(sum(shares.values()), 2)}
        return rows

    def start_times(self) -> dict[str, dict[str, Any]]:
        """Milliseconds of commands, Python's start included."""
        found = {}
        for arguments in COMMANDS:
            walls, cpus = [], []
            for _ in range(STARTS):
                before, began = _ended_children(), time.perf_counter()
                self.command(*arguments)
                walls.append(time.perf_counter() - began)
                cpus.append(_ended_children() - before)
            found[f"outbox-tasks {arguments[0]}"] = {
                "ms": round(median(walls) * 1000), "CPU ms": round(median(cpus) * 1000), "aim": "≤ 300"
            }  # fmt: skip
        return found


def _ended_children() -> float:
    used = psutil.Process().cpu_times()
    return float(used.children_user + used.children_system)


def _wakeups(pid: int) -> int:
    """How often the process and its descendants have waited for something, where the system counts that."""
    process = psutil.Process(pid)
    try:
        return sum(one.num_ctx_switches().voluntary for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0


@bench
@click.option("--seconds", default=60.0, show_default=True, help="How long to watch.")
def main(say: Say, seconds: float) -> list[Figures]:
    """The CPU of an idle relay, and how long a command takes to start."""
    with running(Idle) as run:
        say("idle")
        shares = run.shares(seconds)
        say("commands")
        return [Figures("idle", shares), Figures("command", run.start_times())]
