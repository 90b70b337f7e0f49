"""Visits every state of the runs, and checks what must hold in each, and at every step."""

from __future__ import annotations

from array import array

from tests.model import properties
from tests.model.found import Found, endless, uncollected
from tests.model.runs import OVER, Move, Row, Runs, State

TWICE = "a run loses its task only when its lease has run out"
AGAIN = "a repeated run has its cause on the row"
SAME = "a run does what the row says"
WAITED = "no copy is dropped for which the row waits"
KILLED = "a task that loses its workers is dead after its attempts"
PATIENT = "a task does not die because nobody began it"
ENDED = "what has ended does not run"
NEXT = "a task begins only after the earlier one of its key has ended"
PROMISES = (
    TWICE, AGAIN, SAME, WAITED, KILLED, PATIENT, ENDED, NEXT, properties.LOST, properties.VISIBLE, properties.COUNTED,
    properties.FENCED, properties.ENDS,
)  # fmt: skip

CAUSES = ("worker_lost", "failed", "requeued", "unsettled")


def broken(rows: tuple[Row, ...], most: int) -> str | None:
    """The promise that these rows break."""
    for row in rows:
        if row.place == "done" and not row.good:
            return properties.LOST
        if row.place == "dead" and not row.code:
            return properties.VISIBLE
        if row.attempts > most:
            return properties.COUNTED
        if row.ran > 1 and row.code not in CAUSES:
            return AGAIN
        if row.lost > most:
            return KILLED
    return None


def hurt(before: State, move: Move) -> str | None:
    """The promise that a step breaks."""
    row, after = before.rows[move.message], move.state.rows[move.message]
    begins = move.what.startswith("a worker begins the run")
    if begins:
        new = [run for run in move.state.runs if run.stage == "runs" and run not in before.runs]
        if row.place != "pending":
            return ENDED
        if any(run.content != row.content for run in new):
            return SAME
        if any(each.place not in OVER for each in before.rows[: move.message]):
            return NEXT
    if not row.due and (begins or move.what.startswith("the claim leases")):
        alive = [run for run in before.runs if run.message == move.message and run.current and run != move.actor]
        if any(run.stage != "returned" for run in alive):
            return TWICE
    waits = row.place == "pending" and (row.lease == "relay" or row.handed) and row.lease != "run"
    was_sent = row.begun or (row.handed and row.lease == "relay")
    if move.copy is not None and move.copy.content == row.content and waits and was_sent:
        return WAITED
    if after.place == "dead" and row.handed and not row.begun and move.what.startswith("the claim makes"):
        return PATIENT
    if move.actor is not None and not move.actor.current and row != after._replace(good=row.good):
        return properties.FENCED
    return None


class RunSearch:
    """One search, breadth first."""

    def __init__(self, protocol: Runs) -> None:
        self.protocol = protocol
        self.found = Found()
        first = protocol.first()
        self._numbers = {first: 0}
        self._states = [first]
        self._parents = array("L", [0])
        self._forward = array("L"), array("L")
        self.edges: dict[tuple[str, str], set[tuple[Row, Row]]] = {}

    @uncollected()
    def run(self) -> Found:
        numbers, states, most = self._numbers, self._states, self.protocol.limits.max_attempts
        froms, tos = self._forward
        for here, state in enumerate(states):  # which grows meanwhile
            for move in self.protocol.moves(state):
                self.found.steps += 1
                if promise := hurt(state, move):
                    return self._broken(promise, here, move)
                there = self.protocol.tidy(move.state)
                number = numbers.get(there)
                if number is None:
                    number = numbers[there] = len(states)
                    states.append(there)
                    self._parents.append(here)
                    if promise := broken(there.rows, most):
                        return self._broken(promise, here, move)
                if move.kind in ("work", "time"):
                    froms.append(here)
                    tos.append(number)
                before, after = state.rows[move.message], there.rows[move.message]
                self.edges.setdefault((move.what, move.kind), set()).add((before, after))
        self._check_ends()
        self.found.states = len(states)
        return self.found

    def _check_ends(self) -> None:
        """Whether an end can be reached from every state, by work and time alone."""
        over = (*OVER, "dead")
        ends = bytearray(
            any(_stops(row) for row in s.rows) or all(r.place in over for r in s.rows) for s in self._states
        )
        if (stuck := endless(ends, *self._forward)) >= 0:
            self.found.broken, self.found.trace = properties.ENDS, self._trace(stuck)

    def _broken(self, promise: str, here: int, move: Move) -> Found:
        self.found.states = len(self._states)
        self.found.broken, self.found.trace = promise, [*self._trace(here), told(move)]
        return self.found

    def _trace(self, number: int) -> list[str]:
        lines: list[str] = []
        while number:
            here, there = self._parents[number], self._states[number]
            moves = self.protocol.moves(self._states[here])
            lines.append(next(told(move) for move in moves if self.protocol.tidy(move.state) == there))
            number = here
        return lines[::-1]


def _stops(row: Row) -> bool:
    """A dead task holds up those behind it with its key."""
    return row.place == "dead"


def told(move: Move) -> str:
    return move.what.format(f"m{move.message + 1}")
