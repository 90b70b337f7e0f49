"""Visits every state that the protocol can get into, the nearest first, and checks the promises in each."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.model import properties
from tests.model.base import Step
from tests.model.protocol import Protocol
from tests.model.space import Numbers, Space


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


def search(protocol: Protocol) -> Found:
    """Visit all states; stops at the first promise that does not hold."""
    return Search(protocol).run()


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


class Search:
    """One search, breadth first."""

    def __init__(self, protocol: Protocol) -> None:
        self.space = Space(protocol)
        self.found = Found()
        first = self.space.first()
        self._numbers: dict[Numbers, int] = {first: 0}
        self._states = [first]
        self._parents = array("L", [0])
        self._forward = array("L"), array("L")
        """Where each step of work, or of time, comes from and leads."""
        self._rows: dict[int, str | None] = {}

    @uncollected()
    def run(self) -> Found:
        numbers, states, parents = self._numbers, self._states, self._parents
        froms, tos = self._forward
        found = self.found
        for here, state in enumerate(states):  # which grows meanwhile
            for step, there, hurt in self.space.steps(state):
                found.steps += 1
                if hurt:
                    return self._broken(hurt, here, step)
                number = numbers.get(there)
                if number is None:
                    number = numbers[there] = len(states)
                    states.append(there)
                    parents.append(here)
                    if hurt := self._check(there):
                        return self._broken(hurt, here, step)
                if step.kind in ("work", "time"):
                    froms.append(here)
                    tos.append(number)
        self._check_ends()
        found.states = len(states)
        return found

    def _check(self, state: Numbers) -> str | None:
        rows, _, one, other, _, _ = state
        if rows not in self._rows:
            self._rows[rows] = properties.broken_rows(self.space.rows.values[rows], self.space.protocol.variant)
        if one and self.space.sending(one) & self.space.sending(other):
            return properties.ONE_HOLDER
        return self._rows[rows]

    def _check_ends(self) -> None:
        """Whether an end can be reached from every state, by work and time alone."""
        variant, rows = self.space.protocol.variant, self.space.rows.values
        over = {n for n, values in enumerate(rows) if properties.has_ended(values, variant)}
        ends = bytearray(state[0] in over for state in self._states)
        if (stuck := endless(ends, *self._forward)) >= 0:
            self.found.broken, self.found.trace = properties.ENDS, self._trace(stuck)

    def _broken(self, promise: str, here: int, step: Step) -> Found:
        self.found.states = len(self._states)
        self.found.broken, self.found.trace = promise, [*self._trace(here), str(step)]
        return self.found

    def _trace(self, number: int) -> list[str]:
        """The steps on the way to a state."""
        told: list[str] = []
        while number:
            here, there = self._parents[number], self._states[number]
            told.append(next(str(step) for step, to, _ in self.space.steps(self._states[here]) if to == there))
            number = here
        return told[::-1]
