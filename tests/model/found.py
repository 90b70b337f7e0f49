"""What all searches have in common."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Found:
    """What a search has found."""

    states: int = 0
    steps: int = 0
    broken: str | None = None
    """The promise that does not hold."""
    trace: list[str] = field(default_factory=list)
    """The shortest way to where it does not."""

    def __str__(self) -> str:
        if self.broken is None:
            return f"{self.states:,} states, {self.steps:,} steps: every promise holds"
        told = "\n".join(f"{n:3}. {line}" for n, line in enumerate(self.trace, 1))
        return f"after {self.states:,} states, not so: {self.broken}\n{told}"


def endless(ends: bytearray, froms: array[int], tos: array[int]) -> int:
    """The first state from which no step leads to an end, at last; -1: there is none. Marks the others in `ends`."""
    # Most steps lead to states that were found later, so backwards few rounds are enough.
    steps: Iterable[tuple[int, int]] = zip(reversed(froms), reversed(tos), strict=True)
    while True:
        found, others = False, []
        for step in steps:
            here, there = step
            if ends[there]:
                ends[here] = found = True
            elif not ends[here]:
                others.append(step)
        if not found:
            return ends.find(0)
        steps = others


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector: it would look at millions of states again and again, and none of them is garbage.
    It took a quarter of a search."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
