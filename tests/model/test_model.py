"""Every promise holds in every state, and each planted bug is found."""

from __future__ import annotations

import pytest

from lab.moves import MOVES, NOWHERE
from tests.model import planted_runs
from tests.model.explore import Model, Step, explore
from tests.model.pipe import hop_state, planted_hops, planted_keys, planted_lanes
from tests.model.pipe.hops import Hops
from tests.model.pipe.variants import BIG, SEARCHED
from tests.model.places import LATE, place
from tests.model.planted import PLANTED
from tests.model.run_search import RunModel
from tests.model.runs import Limits, Runs

RUNS = [
    Limits("a supervised task, and people", changes=0),
    Limits("two supervised tasks of a key", messages=2, max_attempts=1, relays=1, people=False),
]
BIG_RUNS = [
    Limits("a supervised task", people=False),
    Limits("a supervised task that changes, and people"),
    Limits("three attempts", max_attempts=3, people=False),
]
MODELS: list[Model] = [*SEARCHED, *(RunModel(Runs(limits)) for limits in RUNS)]
WEEKLY: list[Model] = [*BIG, *(RunModel(Runs(limits)) for limits in BIG_RUNS)]
WITH_BUGS = (planted_hops, planted_keys, planted_lanes, planted_runs)
"""They fill PLANTED."""


def every_promise_holds(model: Model) -> None:
    result = explore(model)
    assert result.broken is None, f"\n{result}"
    assert result.states > 1000


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_promise_holds_in_every_state(model: Model) -> None:
    every_promise_holds(model)


@pytest.mark.weekly
@pytest.mark.parametrize("model", WEEKLY, ids=lambda model: model.name)
def test_every_promise_holds_in_the_many_states_of_a_big_model(model: Model) -> None:
    every_promise_holds(model)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, promise = PLANTED[name]
    result = explore(bug)
    assert result.broken == promise, f"\n{result}"


@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without a key"])
def test_the_code_may_do_what_the_model_does(keyed: bool) -> None:
    """The trace of a run knows each move of the model. A recall only makes a lease run out."""
    moves: set[tuple[str, str]] = set()

    def met(state: hop_state.State, step: Step) -> None:
        before, after = place(state.db, 0), place(step.to.db, 0)
        if not step.what.startswith("recall") and before != after:
            moves.add((before, after))

    explore(Hops("one message", messages=1, keyed=keyed, people=True, max_attempts=1, workers=1), met)
    undone = {(before, after) for before, after in moves if before == after + LATE or after == before + LATE}
    assert not moves - undone - MOVES.keys()
    assert len(moves) > 10
    assert (NOWHERE, "ready") in moves
