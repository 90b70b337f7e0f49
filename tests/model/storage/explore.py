"""Visits every state of a model, the nearest first, and checks its promises in each."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from typing import Any, Literal, NamedTuple, Protocol

from tests.model.found import Found, endless, uncollected

ENDS = "every message can still come to an end"


class Step(NamedTuple):
    """One way in which something goes on."""

    what: str
    to: Any
    kind: Literal["work", "fault", "person"] = "work"
    """What the relay relies on; what may happen or not."""
    hurt: str | None = None
    """The promise that it breaks."""


class Model(Protocol):
    """What can be searched. States are equal if all that can follow is."""

    name: str

    def first(self) -> Hashable: ...

    def steps(self, state: Any, /) -> Iterable[Step]: ...

    def broken(self, state: Any, /) -> str | None:
        """The promise that is broken here."""

    def has_ended(self, state: Any, /) -> bool:
        """Whether nothing is left to be done but by people."""


@uncollected()
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
            hurt = step.hurt
            if number == len(states):
                states.append(step.to)
                parents.append(here)
                hurt = hurt or model.broken(step.to)
            if hurt:
                found.states, found.broken, found.trace = len(states), hurt, told(here, step.what)
                return found
            if step.kind == "work":
                froms.append(here)
                tos.append(number)
    found.states = len(states)
    if (stuck := endless(bytearray(map(model.has_ended, states)), froms, tos)) >= 0:
        found.broken, found.trace = ENDS, told(stuck)
    return found
