"""Webhooks in trouble.

- *failing*: 200 messages in one transaction, of which each fifth fails twice with 503. Seconds until all have ended. No
  more than 280 sends are needed, and the circuit must not open;
- *uneven*: messages of 30 keys to a webhook that answers in 5 ms, but one time in fifty in 1.5 s. *Ideal* is the rate
  at which it could answer on all connections.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import click
from sqlalchemy import text

from bench.relay import AGAINST, WORKERS, Bench, Singles, sides
from bench.report import Figures, Say, bench
from bench.webhook_server import Webhook, fails_twice, is_slow_now_and_then

ORDERS, AIM = 200, "≤ 15"
DIALS: dict[str, Singles] = {"default": None, 'singles = "all"': "all"}
KEYS, CONNECTIONS = 30, 10


class Hooked(Bench):
    """A relay with a webhook."""

    def failing(self, singles: Singles, workers: int) -> dict[str, Any]:
        """Seconds until all messages have ended."""
        with Webhook(fails_twice) as hook:
            self.know({"hook": {"url": hook.url}})
            self.empty()
            with self.engine.begin() as connection:
                connection.execute(text("DELETE FROM outbox_destinations"))
            with self.relay(singles, publishers=workers):
                self.write(ORDERS, destination="'hook'")
                began = time.perf_counter()
                self.wake()
                self.wait_for(self.is_settled, "all orders have ended")
                seconds = time.perf_counter() - began
        with self.engine.connect() as connection:
            most = connection.scalar(text("SELECT max(attempts) FROM outbox_trouble"))
        return {"s": round(seconds, 1), "aim": AIM, "sends": hook.answers, "most attempts": most}

    def uneven(self, count: int) -> dict[str, Any]:
        """The rate of most of a backlog; the rest only keeps all keys busy."""
        with Webhook(is_slow_now_and_then) as hook:
            self.know({"hook": {"url": f"{hook.url}&outbox_concurrency={CONNECTIONS}"}})
            self.empty()
            with self.relay() as workers:
                self.write(count, f"'order:' || n % {KEYS}", destination="'hook'")
                self.wake()
                self.wait_for(lambda: hook.answers > count // 20, "it has begun")
                before, spent = hook.answers, hook.seconds
                most = count * 17 // 20 - before
                figures = self.measure(workers, most, lambda: hook.answers >= before + most)
                mean = (hook.seconds - spent) / (hook.answers - before)
            if hook.late:
                raise click.ClickException(f"out of order, or twice: {hook.late}")
        ideal, rate = min(KEYS, WORKERS * CONNECTIONS) / mean, figures["per_second"]
        return {"messages/s": rate, "ideal": round(ideal), "÷ ideal": rate / ideal, "CPU µs each": figures["cpu_us"]}


@bench
@click.option("--rounds", default=3, show_default=True, help="How often each takes its turn.")
@click.option("--messages", default=5_000, show_default=True, help="To the uneven one.")
@AGAINST
def main(say: Say, rounds: int, messages: int, against: str | None) -> list[Figures]:
    """Webhooks in trouble."""
    failing: dict[str, list[dict[str, Any]]] = {}
    uneven: dict[str, dict[str, Any]] = {}
    with sides(Hooked, against) as runs:
        for turn in range(rounds):
            for dial, singles in DIALS.items():
                for workers in (1, 3):
                    for other, run in runs.items():
                        name = f"{dial}, {workers} publish workers{other}"
                        say(f"round {turn + 1} of {rounds}: failing, {name}")
                        failing.setdefault(name, []).append(run.failing(singles, workers))
        for other, run in runs.items():
            say(f"uneven{other}")
            uneven[f"{KEYS} keys{other}"] = run.uneven(messages)
    rows = {
        name: {**each[0], "s": median(row["s"] for row in each), "rounds": [row["s"] for row in each]}
        for name, each in failing.items()
    }
    return [Figures(f"failing, {ORDERS} messages", rows), Figures(f"uneven, {WORKERS} publish workers", uneven)]
