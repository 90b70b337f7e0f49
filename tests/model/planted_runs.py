"""Bugs in the runs of supervised tasks, each planted in one place, with the promise that must be found broken."""

from __future__ import annotations

from collections.abc import Callable

from tests.model import run_search
from tests.model.explore import ENDS
from tests.model.planted import PLANTED
from tests.model.run_search import RunModel
from tests.model.runs import Copy, Limits, Row, Run, Runs, State, put

ONE = Limits("one task", people=False)
PEOPLE = Limits("one task, and people", max_attempts=1, relays=1)
TWO = Limits("two of a key", messages=2, max_attempts=1, changes=0, people=False)


def planted(promise: str, limits: Limits = ONE) -> Callable[[type[Runs]], type[Runs]]:
    """Register a bug in the runs, to be searched under these limits."""

    def register(bug: type[Runs]) -> type[Runs]:
        PLANTED[str(bug.__doc__).rstrip(".")] = RunModel(bug(limits)), promise
        return bug

    return register


@planted(run_search.WAITED)
class BeginByTheHandOver(Runs):
    """A run begins by the token of the hand-over, so a copy in a long queue is made invalid by the next one."""

    keeps = True

    def may_begin(self, row: Row, copy: Copy) -> bool:
        return super().may_begin(row, copy) and copy.current


@planted(run_search.TWICE)
class BeginWhileItRuns(Runs):
    """A copy runs while another one runs."""

    def may_begin(self, row: Row, copy: Copy) -> bool:
        return row.place == "pending" and (row.begun or row.handed) and row.content == copy.content


@planted(run_search.SAME)
class OldCopyBegins(Runs):
    """A copy from before a retry begins."""

    def may_begin(self, row: Row, copy: Copy) -> bool:
        return row.place == "pending" and row.begun != row.handed


@planted(run_search.FENCED)
class EndUnfenced(Runs):
    """A run ends by the id alone."""

    keeps = True

    def may_end(self, row: Row, run: Run) -> bool:
        return row.place == "pending"

    def may_renew(self, row: Row, run: Run) -> bool:
        return super().may_end(row, run)


@planted(run_search.FENCED)
class RenewalUnfenced(Runs):
    """A worker renews by the id alone: also what another one runs by now."""

    keeps = True

    def may_renew(self, row: Row, run: Run) -> bool:
        return row.place == "pending" and row.begun and row.due


@planted(run_search.DONE)
class DoneAsItBegins(Runs):
    """The row is done as the run begins, as with early acknowledgement."""

    keeps = True

    def moves(self, state: State) -> object:  # type: ignore[override]
        for move in super().moves(state):
            row = move.state.rows[move.message]
            if move.what.startswith("a worker begins the run"):
                move = move._replace(
                    state=put(move.state, move.message, row._replace(place="done", lease="", due=False))
                )
            yield move


@planted(run_search.KILLED)
class LostWorkerCountsNothing(Runs):
    """The attempt is given back if the worker was lost: a task that kills its workers comes back for ever."""

    def gets_attempt_back(self, row: Row) -> bool:
        return row.handed


@planted(run_search.PATIENT)
class LongQueueKills(Runs):
    """The attempt counts although no worker began the task: a long queue makes dead letters."""

    def gets_attempt_back(self, row: Row) -> bool:
        return False


@planted(run_search.AGAIN)
class NoCauseOfALostWorker(Runs):
    """The claim does not note that a worker was lost."""

    def claimed(self, row: Row) -> Row:
        after = super().claimed(row)
        return after._replace(code=row.code) if after.code == "worker_lost" and after.place != "dead" else after


@planted(ENDS)
class HandedOverForEver(Runs):
    """The claim takes no row that is handed over: what the broker loses is lost."""

    def is_claimable(self, state: State, n: int, row: Row) -> bool:
        return super().is_claimable(state, n, row) and not (row.handed and not row.begun)


@planted(run_search.NEXT, TWO)
class NextBeforeTheEnd(Runs):
    """The next task of a key is sent once the one before is handed over."""

    def is_claimable(self, state: State, n: int, row: Row) -> bool:
        return (
            row.place == "pending"
            and row.due
            and all(each.handed or each.place != "pending" for each in state.rows[:n])
        )


@planted(run_search.ENDED, PEOPLE)
class CancelledYetRuns(Runs):
    """A copy of a cancelled task still runs."""

    keeps = True

    def may_begin(self, row: Row, copy: Copy) -> bool:
        return super().may_begin(row, copy) or row.place == "discarded"
