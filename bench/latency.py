"""How long a message takes from the return of the commit to the entry in a Redis Stream.

The keys are each another one. Writer, claim worker, beat and two publish workers run as in *yardsticks*; the writer is
a process of its own. The entry's id is the millisecond in which Redis took it, and it counts as the end of that one:
half a millisecond too much on average.

`--against CHECKOUT` lets another release take turns, on servers of its own. On a busy machine `chrt -r 5 python -m
bench latency` shows what the relay itself takes: with real-time priority its processes don't wait for others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any

import click

from bench.relay import running
from bench.report import Figures, Say, bench, spread
from bench.yardsticks import OtherRelease, Yardsticks

WRITER = (Path(__file__).parent / "latency_writer.py").read_text()
KINDS = {"without a key": "", "with keys": "order"}
RATES = (10, 300)
"""Messages a second."""


def latencies(run: Yardsticks, rate: int, seconds: float, key: str) -> list[float]:
    """Milliseconds of each message."""
    run.stream.delete("bench")
    argv = [sys.executable, "-c", WRITER, str(rate), str(seconds), key]
    done = subprocess.run(argv, cwd=run.cwd, env=run.environment, stdout=subprocess.PIPE, check=True)
    committed = json.loads(done.stdout)
    run.wait_for(run.is_settled, "everything has arrived")
    entries: Any = run.stream.xrange("bench")
    arrived = {fields[b"ce_id"].decode(): int(entry.split(b"-")[0]) + 1 for entry, fields in entries}
    return [max(0.0, arrived[id] - at) for id, at in committed.items()]


@bench
@click.option("--rounds", default=5, show_default=True, help="How often each takes its turn.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each turn.")
@click.option("--against", metavar="CHECKOUT", help="Let the relay of another release take its turns too.")
def main(say: Say, rounds: int, seconds: float, against: str | None) -> list[Figures]:
    """Milliseconds from commit to destination."""
    found: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        runs = {"": stack.enter_context(running(Yardsticks))}
        if against is not None:
            other = runs[", the other release"] = stack.enter_context(running(OtherRelease))
            other.move_to(Path(against).absolute())
        for run in runs.values():
            stack.enter_context(run.relay(bundle_size=100))
        for turn in range(rounds):
            for kind, key in KINDS.items():
                for rate in RATES:
                    for whose, run in runs.items():
                        say(f"round {turn + 1} of {rounds}: {kind} at {rate}/s{whose}")
                        cuts = quantiles(latencies(run, rate, seconds, key), n=100)
                        found.setdefault(f"{kind}, {rate}/s{whose}", []).append((cuts[49], cuts[98]))
    return [Figures("commit → destination, ms", {name: _row(each) for name, each in found.items()})]


def _row(rounds: list[tuple[float, float]]) -> dict[str, Any]:
    p50, p99 = (spread(list(each), 1) for each in zip(*rounds, strict=True))
    return {"p50": p50["median"], "p50, rounds": p50["rounds"], "p99": p99["median"], "p99, rounds": p99["rounds"]}
