"""How long a message takes from the return of the commit to the entry in a Redis Stream.

Messages without a key, and such of which each has another key, by default and with `singles = 0`. Writer, claim worker,
beat and two publish workers run; the writer is a process of its own. The entry's id is the millisecond in which Redis
took it, and it counts as the end of that one: half a millisecond too much on average.

On a busy machine `chrt -r 5 python -m bench latency` shows what the relay itself takes: with real-time priority its
processes don't wait for others.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any

import click

from bench.relay import AGAINST, OTHER, Bench, running, sides, singles_setting
from bench.report import Figures, Say, bench, spread

WRITER = (Path(__file__).parent / "latency_writer.py").read_text()
PULL = ", singles = 0"
KINDS = {"without a key": "", "with keys": "order"}
AIMS = {
    "10/s": ("≤ 5", "≤ 12"), "300/s": ("", "≤ 25"), f"10/s{PULL}": ("≤ 3", "≤ 8"), f"300/s{PULL}": ("≤ 3", "≤ 8"),
}  # fmt: skip
"""Of p50 and p99."""

RATES = (10, 300)
"""Messages a second."""

ENTRIES_AT_A_TIME = 10_000
"""Entries of a stream to read at a time."""


def latencies(run: Bench, rate: int, seconds: float, key: str, destination: str = "bench") -> list[float]:
    """Milliseconds of each message."""
    run.stream.delete(destination)
    committed = json.loads(run.python("-c", WRITER, str(rate), str(seconds), key, destination))
    arrived: dict[str, int] = {}
    last = "-"

    def have_arrived() -> bool:
        nonlocal last
        entries: Any = run.stream.xrange(destination, last, count=ENTRIES_AT_A_TIME)
        for entry, fields in entries:
            arrived.setdefault(fields[b"ce_id"].decode(), int(entry.split(b"-")[0]) + 1)
            last = "(" + entry.decode()
        return all(id in arrived for id in committed)

    run.wait_for(have_arrived, "everything has arrived")
    return [max(0.0, arrived[id] - at) for id, at in committed.items()]


@bench
@click.option("--rounds", default=5, show_default=True, help="How often each takes its turn.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each turn.")
@AGAINST
def main(say: Say, rounds: int, seconds: float, against: str | None) -> list[Figures]:
    """Milliseconds from commit to destination."""
    measured: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        runs = stack.enter_context(sides(Bench, against))
        for run in runs.values():
            stack.enter_context(run.relay())
        pulling = stack.enter_context(running(Bench))
        pulling.environment |= singles_setting(0)  # the writer wakes drains itself
        stack.enter_context(pulling.relay(0))
        runs = {"": runs[""], PULL: pulling, **runs}
        for turn in range(rounds):
            for kind, key in KINDS.items():
                for rate in RATES:
                    for whose, run in runs.items():
                        say(f"round {turn + 1} of {rounds}: {kind} at {rate}/s{whose}")
                        cuts = quantiles(latencies(run, rate, seconds, key), n=100)
                        measured.setdefault(f"{kind}, {rate}/s{whose}", []).append((cuts[49], cuts[98]))
    return [Figures("commit → destination, ms", {name: _row(name, each) for name, each in measured.items()})]


def _row(name: str, rounds: list[tuple[float, float]]) -> dict[str, Any]:
    p50, p99 = (spread(list(each), 1) for each in zip(*rounds, strict=True))
    row = {"p50": p50["median"], "p50, rounds": p50["rounds"], "p99": p99["median"], "p99, rounds": p99["rounds"]}
    aims = AIMS.get(name.partition(", ")[2], ("", ""))
    return row | ({} if name.endswith(OTHER) else {"aim p50": aims[0], "aim p99": aims[1]})
