"""What must hold of the runs in each state, and at every step."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.explore import Kind, Step
from tests.model.runs import OVER, Move, Row, Runs, State

TWICE = "a run loses its task only when its lease has run out"
AGAIN = "a repeated run has its cause on the row"
SAME = "a run does what the row says"
WAITED = "no copy is dropped for which the row waits"
KILLED = "a task that loses its workers is dead after its attempts"
PATIENT = "a task does not die because nobody began it"
ENDED = "what has ended does not run"
NEXT = "a task begins only after the earlier one of its key has ended"
DONE = "what is archived as done has run to its end"
REASON = "a dead letter says why"
LIMIT = "no task has more attempts than its limit"
FENCED = "a worker changes nothing of which it has not the lease"

CAUSES = ("worker_lost", "failed", "requeued", "unsettled")


def broken(rows: tuple[Row, ...], most: int) -> str | None:
    """The promise that these rows break."""
    for row in rows:
        if row.place == "done" and not row.good:
            return DONE
        if row.place == "dead" and not row.code:
            return REASON
        if row.attempts > most:
            return LIMIT
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
        return FENCED
    return None


class RunModel:
    """The runs, as `explore` wants them."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.name = runs, runs.limits.name

    def first(self) -> State:
        return self.runs.first()

    def steps(self, state: State) -> Iterator[Step]:
        for move in self.runs.moves(state):
            kind: Kind = "work" if move.kind == "time" else move.kind
            told = move.what.format(f"m{move.message + 1}")
            yield Step(told, self.runs.tidy(move.state), kind, hurt(state, move))

    def broken(self, state: State) -> str | None:
        return broken(state.rows, self.runs.limits.max_attempts)

    def has_ended(self, state: State) -> bool:
        """A dead task holds up those behind it with its key."""
        return any(row.place == "dead" for row in state.rows) or all(row.place in OVER for row in state.rows)
