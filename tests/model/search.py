"""Visits every state that the protocol can get into, the nearest first, and checks the promises in each."""

from __future__ import annotations

from array import array

from tests.model import properties
from tests.model.base import Step
from tests.model.found import Found, endless, uncollected
from tests.model.protocol import Protocol
from tests.model.space import Numbers, Space


def search(protocol: Protocol) -> Found:
    """Visit all states; stops at the first promise that does not hold."""
    return Search(protocol).run()


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
