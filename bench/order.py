"""What the order of each key costs, beside messages without a key in the same run.

- drain: a backlog without keys, as many messages over 10,000 and over 100 keys, written in turns or uneven, and a fifth
  as many of a single key. Nothing may be missing or out of order;
- fair: how late a message of a quiet key arrives while the relay drains a backlog of 10,000 keys, or of one.

Two solo publish workers; embedded servers with 512 MB of `shared_buffers`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

import click

from bench.latency import ENTRIES_AT_A_TIME, latencies
from bench.relay import AGAINST, OTHER, WARM, Bench, Figure, sides
from bench.report import Figures, Say, bench, spread
from outbox_tasks.local.processes import Child

NONE, HOT = "NULL", "'hot'"
EVEN, FEW = "'order:' || n % 10000", "'order:' || n % 100"
BASE = "without keys"
KINDS = {
    BASE: NONE,
    "10,000 keys": EVEN,
    "10,000 keys, uneven": "'order:' || floor(10000 * random() ^ 3)",
    "100 keys": FEW,
    "100 keys, uneven": "'order:' || floor(100 * random())",
    "one key": HOT,
}
"""The keys of a backlog, as SQL."""

AIMS = {"10,000": ("≥ 0.6", "≤ 0.6"), "100": ("≥ 0.6", "≤ 0.6"), "one": ("", "≤ 0.75"), "without": ("", "≤ 0.65")}
"""Of the rate beside messages without keys, and of the CPU beside another checkout."""

BUSY = {"10,000 busy keys": EVEN, "one busy key": HOT}
QUIET_RATE, QUIET_SECONDS = 10, 5

Rows = dict[str, dict[str, Any]]


class Keyed(Bench):
    """A backlog with keys."""

    def in_order(self, workers: list[Child], count: int, key: str) -> Figure:
        """The rate at which a committed backlog is delivered. Raises if a message is missing or out of order."""
        figures = self.delivered(workers, count, key)
        if wrong := self._wrong(count):
            raise click.ClickException(f"missing, or out of order: {wrong}")
        return figures

    def _wrong(self, count: int) -> int:
        """How many messages are missing, or came behind a later one of their key."""
        last: dict[bytes, int] = defaultdict(int)
        seen, wrong, start = set(), 0, "-"
        while entries := self._entries(start):
            for _, fields in entries:
                number, key = json.loads(fields[b"data"])["id"], fields.get(b"ce_partitionkey")
                if key is not None and number not in seen:
                    wrong += number < last[key]
                    last[key] = max(number, last[key])
                seen.add(number)
            start = "(" + entries[-1][0].decode()
        return wrong + count - len(seen)

    def _entries(self, start: str) -> Any:
        return self.stream.xrange("bench", min=start, count=ENTRIES_AT_A_TIME)

    def late(self, count: int, key: str) -> dict[str, Any]:
        """Milliseconds from the commit of messages of quiet keys to the stream, while a backlog is drained."""
        self.empty()
        self.write(count, key)
        self.wake()
        taken = latencies(self, QUIET_RATE, QUIET_SECONDS, "quiet")
        self.wait_for(self.is_settled, "everything is settled")
        return {"p50 ms": median(taken), "p99 ms": quantiles(taken, n=100)[98], "latest ms": max(taken)}


def drained(measured: dict[str, list[Figure]]) -> Rows:
    """The rows of the drains."""
    rows: Rows = {}
    for name, each in measured.items():
        kind, other = name.removesuffix(OTHER), OTHER if name.endswith(OTHER) else ""
        rate_aim, cpu_aim = AIMS[kind.partition(" ")[0]]
        ratio = spread([a["per_second"] / b["per_second"] for a, b in zip(each, measured[BASE + other], strict=True)])
        rows[name] = {
            "messages/s": round(median(one["per_second"] for one in each)),
            "rounds": [round(one["per_second"]) for one in each],
            "CPU µs each": round(median(one["cpu_us"] for one in each), 1),
            "÷ without keys": ratio["median"], "ratios": ratio["rounds"], "aim": "" if other else rate_aim,
        }  # fmt: skip
        if not other and kind + OTHER in measured:
            cpu = spread([a["cpu_us"] / b["cpu_us"] for a, b in zip(each, measured[kind + OTHER], strict=True)])
            rows[name] |= {"CPU ÷ other": cpu["median"], "CPU ratios": cpu["rounds"], "CPU aim": cpu_aim}
    return rows


@bench
@click.option("--messages", default=50_000, show_default=True, help="Of each backlog that is drained.")
@click.option("--rounds", default=3, show_default=True, help="How often each kind of backlog is drained.")
@click.option("--only", type=click.Choice(["drain", "fair"]), help="Not both.")
@AGAINST
def main(say: Say, messages: int, rounds: int, only: str | None, against: str | None) -> list[Figures]:
    """What the order of each key costs."""
    measured: dict[str, list[Figure]] = defaultdict(list)
    lateness: Rows = {}
    with ExitStack() as stack:
        runs = stack.enter_context(sides(Keyed, against, shared_buffers="512MB"))
        workers = {other: stack.enter_context(run.relay()) for other, run in runs.items()}
        for other, run in runs.items():
            run.in_order(workers[other], WARM, EVEN)
        for turn in range(rounds if only != "fair" else 0):
            for name, key in KINDS.items():
                for other, run in runs.items():
                    say(f"round {turn + 1} of {rounds}: drain, {name}{other}")
                    count = messages // 5 if key == HOT else messages
                    measured[name + other].append(run.in_order(workers[other], count, key))
        for name, key in BUSY.items() if only != "drain" else ():
            for other, run in runs.items():
                say(f"quiet keys beside {name}{other}")
                lateness[f"beside {name}{other}"] = run.late(2 * messages, key)
    tables = [("2 publish workers", drained(measured)), ("commit → destination of quiet keys", lateness)]
    return [Figures(title, rows) for title, rows in tables if rows]
