"""Visits every state of a model, the nearest first, and checks its promises in each."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

ENDS = "every message can still come to an end"

Kind = Literal["work", "fault", "person"]
"""What the relay relies on; what may happen or not."""


class Step(NamedTuple):
    """One way in which something goes on."""

    what: str
    to: Any
    kind: Kind = "work"
    hurt: str | None = None
    """The promise that it breaks."""


class Model(Protocol):
    """What can be searched. States are equal if all that can follow is."""

    name: str

    def first(self) -> Hashable: ...

    def steps(self, state: Any, /) -> Iterable[Step]: ...

    def has_ended(self, state: Any, /) -> bool:
        """Whether nothing is left to be done but by people."""


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


def explore(model: Model) -> Found:
    """Visit all states; stops at the first promise that does not hold."""
    found = Found()
    states = [model.first()]
    numbers = {states[0]: 0}
    parents = array("L", [0])
    froms, tos = array("L"), array("L")

    def told(number: int, *last: str) -> list[str]:
        trace = [*reversed(last)]
        while number:
            here, there = parents[number], states[number]
            trace.append(next(step.what for step in model.steps(states[here]) if step.to == there))
            number = here
        return trace[::-1]

    for here, state in enumerate(states):  # which grows meanwhile
        for step in model.steps(state):
            found.steps += 1
            number = numbers.setdefault(step.to, len(states))
            if number == len(states):
                states.append(step.to)
                parents.append(here)
            if step.hurt:
                found.states, found.broken, found.trace = len(states), step.hurt, told(here, step.what)
                return found
            if step.kind == "work":
                froms.append(here)
                tos.append(number)
    found.states = len(states)
    if (stuck := _endless(bytearray(map(model.has_ended, states)), froms, tos)) >= 0:
        found.broken, found.trace = ENDS, told(stuck)
    return found


def _endless(ends: bytearray, froms: array[int], tos: array[int]) -> int:
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
