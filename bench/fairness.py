"""What one destination in trouble costs a healthy one: the time from commit to destination.

One relay with four publish processes; ten messages a second to the healthy destination. Beside it, in turn: nothing,
then a destination that is *slow* (each send takes 3 s), *silent* (it takes connections and never answers), *flooded*
with a backlog, one that *refuses* all for good, one that asks to *retry* all, and *two floods*. Those that are quick
have had some messages before. Each trouble has a relay of its own.

The last four take all the CPU there is. The row *loaded machine* shows what that alone does: a process that only
computes for each core, and one more.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from statistics import quantiles
from typing import Any

import click
from sqlalchemy import text

from bench.latency import latencies
from bench.relay import AGAINST, OTHER, Bench, sides
from bench.report import Figures, Say, bench
from bench.webhook_server import silent, webhook

NOTHING, LOADED = "undisturbed", "loaded machine"
HEALTHY, RATE, PROCESSES = "healthy", 10, 4
WARM = 1_000
TROUBLES: dict[str, tuple[list[str], int, str]] = {
    NOTHING: ([], 0, ""),
    "slow": (["slow"], 2_000, "≤ 60"),
    "silent": (["silent"], 2_000, "≤ 60"),
    "flooded": (["flood"], 200_000, "≤ 80"),
    "refusing": (["refusing"], 10_000, "≤ 80"),
    "asking to retry": (["asking"], 10_000, ""),
    "two floods": (["flood", "flood2"], 200_000, "≤ 100"),
    LOADED: ([], 0, ""),
}
"""The destinations in trouble, how many messages are due for each, and what the healthy one's p99 may be."""

QUICK = {"flood", "flood2", "refusing", "asking"}

LEFT = "SELECT count(*) FROM outbox_at_work WHERE destination = :name AND place <> 'dead'"


@contextmanager
def computing() -> Iterator[None]:
    """Processes that take all CPU."""
    spawning = multiprocessing.get_context("spawn")
    hogs = [spawning.Process(target=compute, daemon=True) for _ in range((os.cpu_count() or 1) + 1)]
    for hog in hogs:
        hog.start()
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.join()


def compute() -> None:
    """Runs in each of them."""
    while True:
        pass


class Fairness(Bench):
    """A relay and its destinations."""

    def waited(self, destinations: list[str], count: int, seconds: float) -> dict[str, Any]:
        """Milliseconds from commit to the healthy destination, while others are in trouble."""
        self.empty()
        self.broker.flushdb()
        with self.engine.begin() as connection:
            connection.execute(text("DELETE FROM outbox_destinations"))
        with self.relay(publishers=1, processes=PROCESSES):
            latencies(self, RATE, 1, "", HEALTHY)
            for name in QUICK & set(destinations):
                self.write(WARM, destination=f"'{name}'")
                self.wake()
                self.wait_for(partial(self._is_tried, name), "each process has sent there")
            for name in destinations:
                self.write(count, destination=f"'{name}'")
            self.wake()
            before = sum(map(self._left, destinations))
            taken = latencies(self, RATE, seconds, "", HEALTHY)
            done = before - sum(map(self._left, destinations))
        cuts = quantiles(taken, n=100)
        return {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": max(taken), "of it done meanwhile": done}

    def _is_tried(self, destination: str) -> bool:
        return self._left(destination, " AND attempts = 0") == 0

    def _left(self, destination: str, which: str = "") -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text(LEFT + which), {"name": destination}).scalar_one())


@bench
@click.option("--seconds", default=20.0, show_default=True, help="Of each trouble.")
@click.option("--only", multiple=True, type=click.Choice(list(TROUBLES)), help="Not all of them.")
@AGAINST
def main(say: Say, seconds: float, only: tuple[str, ...], against: str | None) -> list[Figures]:
    """What one destination in trouble costs the others."""
    rows: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        hooks = {"slow": webhook(204, 3.0), "refusing": webhook(400), "asking": webhook(429)}
        urls = {name: stack.enter_context(hook) for name, hook in hooks.items()}
        urls["silent"] = stack.enter_context(silent())
        runs = stack.enter_context(sides(Fairness, against))
        for run in runs.values():
            run.know(run.streams(HEALTHY, "flood", "flood2") | {name: {"url": url} for name, url in urls.items()})
        for name in only or TROUBLES:
            destinations, count, aim = TROUBLES[name]
            for other, run in runs.items():
                say(name + other)
                with computing() if name == LOADED else nullcontext():
                    rows[name + other] = run.waited(destinations, count, seconds)
                rows[name + other]["aim p99"] = "" if other == OTHER else aim
    return [Figures("beside", rows, f"{RATE} healthy messages a second, {PROCESSES} publish processes")]
