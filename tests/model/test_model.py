"""Every promise holds in every state, and each planted bug is found."""

from __future__ import annotations

import pytest

from lab.moves import MOVES, NOWHERE
from tests.model import page, planted_runs
from tests.model.explore import Model, Step, explore
from tests.model.pipe import hop_state, planted_hops, planted_keys, planted_lanes
from tests.model.pipe.hops import Hops
from tests.model.pipe.variants import SEARCHED
from tests.model.run_search import RunModel
from tests.model.runs import Limits, Runs

RUNS = [
    Limits("a supervised task, and people", changes=0),
    Limits("a supervised task", people=False),
    Limits("two supervised tasks of a key", messages=2, max_attempts=1, relays=1, people=False),
]
PLANTED: dict[str, tuple[Model, str]] = {
    **planted_lanes.PLANTED,
    **planted_keys.PLANTED,
    **planted_hops.PLANTED,
    **{name: (RunModel(bug(limits)), promise) for name, (bug, limits, promise) in planted_runs.PLANTED.items()},
}


@pytest.mark.parametrize(
    "model", [*SEARCHED, *(RunModel(Runs(limits)) for limits in RUNS)], ids=lambda model: model.name
)
def test_every_promise_holds_in_every_state(model: Model) -> None:
    found = explore(model)
    assert found.broken is None, f"\n{found}"
    assert found.states > 1000


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, promise = PLANTED[name]
    found = explore(bug)
    assert found.broken == promise, f"\n{found}"


def test_the_page_says_how_many_bugs_are_planted() -> None:
    assert f"**{len(PLANTED)}** bugs" in page.MODEL.read_text(encoding="utf-8")


@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without a key"])
def test_the_code_may_do_what_the_model_does(keyed: bool) -> None:
    """The trace of a run knows each move of the model. A recall only makes a lease run out."""
    moves: set[tuple[str, str]] = set()

    def met(state: hop_state.State, step: Step) -> None:
        before, after = page.place(state.db, 0), page.place(step.to.db, 0)
        if not step.what.startswith("recall") and before != after:
            moves.add((before, after))

    explore(Hops("one message", messages=1, keyed=keyed, people=True, max_attempts=1, workers=1), met)
    undone = {(before, after) for before, after in moves if before == after + page.LATE or after == before + page.LATE}
    assert not moves - undone - MOVES.keys()
    assert len(moves) > 10
    assert (NOWHERE, "ready") in moves
