"""The runs of tasks, as the workers of the bench `supervised` wrote them down, and what was done to their processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass
class Run:
    """One run of a task's body."""

    pid: int
    began: float
    ended: float = 0.0
    """0: the process was killed."""


@dataclass
class Troubles:
    """What was done to whom."""

    counts: Counter[str] = field(default_factory=Counter)
    gone: dict[int, float] = field(default_factory=dict)
    """When a process was last seen."""
    stopped: list[tuple[int, float, float]] = field(default_factory=list)


def read_runs(notes: Path) -> dict[str, list[Run]]:
    """The runs of each task, in the order of its processes' notes."""
    found: dict[str, list[Run]] = defaultdict(list)
    for file in notes.iterdir():
        for line in file.read_text().splitlines():
            with suppress(ValueError):
                name, what, at, pid = line.split()
                if what == "begins":
                    found[name].append(Run(int(pid), float(at)))
                else:
                    last = [run for run in found[name] if run.pid == int(pid) and not run.ended]
                    last[-1].ended = float(at)
    return found


def overlaps(runs: dict[str, list[Run]], broken: Troubles) -> tuple[int, int]:
    """How many tasks had two runs at the same time; how many of these because a worker was stopped meanwhile."""
    both, stopped = 0, 0
    for each in runs.values():
        each.sort(key=lambda run: run.began)
        for run, following in pairwise(each):
            ended = run.ended or broken.gone.get(run.pid, run.began)
            if ended > following.began:
                both += 1
                stopped += any(pid == run.pid and a < ended and b > run.began for pid, a, b in broken.stopped)
                break
    return both, stopped
