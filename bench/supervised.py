"""What supervised tasks cost beside plain Celery's.

Two solo workers, no task events, log level WARNING. Tasks that do nothing wait in the queue of stopped workers, which
then continue. CPU is that of workers and servers, from the hand-over to the archive. *not supervised*: plain tasks of
an app that supervises others.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import click
from celery import Celery
from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.relay import ROOT, WORKERS, Bench, Figure, running, send_tasks, stopped
from bench.report import Figures, Say, bench, spread
from outbox_tasks.local.processes import Child
from outbox_tasks.outbox import Outbox

NOOP = "shop.noop"
PLAIN, UNSUPERVISED, SUPERVISED = "plain Celery", "not supervised, in an app with supervise", "supervised"


class Cost(Bench):
    """Tasks that do nothing, in turns."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.know({"tasks": {"url": "celery://", "confirm": "run", "max_bytes": 1_000_000}}, nudge=False)
        self.environment |= {"SHOP_BROKER_URL": str(self.settings.broker_url), "PYTHONPATH": str(ROOT)}
        self.shop = Celery("shop", broker=self.settings.broker_url, set_as_current=False)

    def plain(self, count: int, *, supervises: bool = False) -> Figure:
        """Tasks that are sent by Celery."""
        with self._shop(supervises=supervises) as workers, stopped(workers) as go_on:
            send_tasks(self.shop, NOOP, count)
            go_on()
            return self.measure(workers, count, self.is_queue_empty)

    def supervised(self, count: int) -> Figure:
        """Tasks that are stored and handed over."""
        outbox = Outbox(self.settings, celery=self.shop)
        with self._shop(supervises=True) as workers, stopped(workers) as go_on:
            with Session(self.engine) as session, session.begin(), outbox.capture(session):
                for n in range(count):
                    self.shop.send_task(NOOP, (n,), ignore_result=True)
            self.command("drain")
            go_on()
            figures = self.measure(workers, count, self.is_queue_empty)
            self.wait_for(self.is_settled, "all have run")
        with self.engine.connect() as connection:
            assert connection.scalar(text("SELECT sum(count) FROM outbox_journal")) == count
        self.empty()
        return figures

    @contextmanager
    def _shop(self, *, supervises: bool) -> Iterator[list[Child]]:
        """The application's workers."""
        self.environment["SHOP_SUPERVISES"] = "1" if supervises else ""
        argv = [sys.executable, "-m", "celery", "-A", "bench.supervised_shop", "worker", "-P", "solo", "-l", "WARNING"]
        with self.workers([[*argv, "-n", f"shop{n}@%h"] for n in range(WORKERS)]) as workers:
            yield workers


@bench
@click.option("--rounds", default=5, show_default=True, help="How often each takes its turn.")
@click.option("--messages", default=5_000, show_default=True, help="Tasks of a turn.")
def main(say: Say, rounds: int, messages: int) -> list[Figures]:
    """What supervised tasks cost beside plain Celery's."""
    ways: dict[str, Callable[[Cost], Figure]] = {
        PLAIN: lambda run: run.plain(messages),
        UNSUPERVISED: lambda run: run.plain(messages, supervises=True),
        SUPERVISED: lambda run: run.supervised(messages),
    }
    measured: dict[str, list[Figure]] = defaultdict(list)
    with running(Cost) as run:
        run.supervised(500)  # warm
        for turn in range(rounds):
            for name, way in ways.items():
                say(f"round {turn + 1} of {rounds}: {name}")
                measured[name].append(way(run))
    return [Figures("2 solo workers", _rates(measured)), Figures("figure", _ratios(measured))]


def _rates(measured: dict[str, list[Figure]]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "tasks/s": round(median(one["per_second"] for one in each)),
            "rounds": [round(one["per_second"]) for one in each],
            "CPU µs each": round(median(one["cpu_us"] for one in each)),
            "CPU µs, rounds": [round(one["cpu_us"]) for one in each],
        }
        for name, each in measured.items()
    }


def _ratios(measured: dict[str, list[Figure]]) -> dict[str, dict[str, Any]]:
    def cpu(name: str) -> dict[str, Any]:
        return spread([a["cpu_us"] / b["cpu_us"] for a, b in zip(measured[name], measured[PLAIN], strict=True)])

    added = [
        WORKERS * 1000 * (1 / a["per_second"] - 1 / b["per_second"])
        for a, b in zip(measured[SUPERVISED], measured[PLAIN], strict=True)
    ]
    return {
        "CPU, supervised ÷ plain": {**cpu(SUPERVISED), "aim": "≤ 1.5"},
        "ms added to a task": {**spread(added), "aim": "≤ 1"},
        "CPU, not supervised ÷ plain": {**cpu(UNSUPERVISED), "aim": "1"},
    }
