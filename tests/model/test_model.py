"""The protocol keeps its promises in every state, the search notices when it does not, and tables.md says so."""

from __future__ import annotations

import pytest

from tests.model import page, planted_runs
from tests.model.base import Variant
from tests.model.binding import OUTSIDE, Bound, missing
from tests.model.planted import PLANTED, Bug
from tests.model.protocol import Protocol
from tests.model.run_search import RunSearch
from tests.model.runs import Limits, Runs
from tests.model.search import Search, search
from tests.model.variants import RUNS, SEARCHED

steps: page.Edges = {}
"""What the searches of this run have met, for the last test."""
run_steps: page.Edges = {}
searched: set[str] = set()
bound = Bound()


@pytest.mark.parametrize(("protocol", "variant"), SEARCHED, ids=[variant.name for _, variant in SEARCHED])
def test_every_promise_holds_in_every_state(protocol: type[Protocol], variant: Variant) -> None:
    run = Search(protocol(variant))
    found = run.run()
    assert found.broken is None, f"\n{found}"
    assert page.variant_line(variant.name, found) in page.part("variants"), REMEDY
    for step, changes in page.edges(run.space).items():
        steps.setdefault(step, {}).update(changes)
    bound.add_space(run.space)
    searched.add(variant.name)


@pytest.mark.parametrize(
    ("bug", "variant", "promise"), PLANTED.values(), ids=[bug.__name__ for bug, *_ in PLANTED.values()]
)
def test_a_planted_bug_is_found(bug: Bug, variant: Variant, promise: str) -> None:
    found = search(bug(variant))
    print(found)
    assert found.broken == promise, f"\n{found}"
    line = page.bug_line(next(name for name, planted in PLANTED.items() if planted[0] is bug), found)
    assert line in page.part("bugs"), REMEDY


@pytest.mark.parametrize("limits", RUNS, ids=[limits.name for limits in RUNS])
def test_every_promise_of_a_run_holds_in_every_state(limits: Limits) -> None:
    run = RunSearch(Runs(limits))
    found = run.run()
    assert found.broken is None, f"\n{found}"
    assert page.variant_line(limits.name, found) in page.part("variants"), REMEDY
    for step, changes in page.run_edges(run).items():
        run_steps.setdefault(step, {}).update(changes)
    bound.add_runs(run)
    searched.add(limits.name)


@pytest.mark.parametrize(
    ("bug", "limits", "promise"),
    planted_runs.PLANTED.values(),
    ids=[bug.__name__ for bug, *_ in planted_runs.PLANTED.values()],
)
def test_a_bug_planted_in_a_run_is_found(bug: planted_runs.Bug, limits: Limits, promise: str) -> None:
    found = RunSearch(bug(limits)).run()
    assert found.broken == promise, f"\n{found}"
    line = page.bug_line(next(name for name, planted in planted_runs.PLANTED.items() if planted[0] is bug), found)
    assert line in page.part("bugs"), REMEDY


def test_the_page_has_every_transition() -> None:
    _need_all_searches()
    assert page.part("steps") == page.step_lines(steps), REMEDY
    assert page.part("runs") == page.step_lines(run_steps), REMEDY


def test_the_code_may_do_what_the_model_does_and_nothing_else() -> None:
    _need_all_searches()
    assert not bound.unknown, "steps of the model that no move of the code is"
    assert not [*missing(bound)], "moves of the code that no step of the model is"
    assert not {*OUTSIDE} & bound.moves


@pytest.mark.parametrize("part", ["variants", "storage"])
def test_the_page_says_how_many_states_were_searched(part: str) -> None:
    states = sum(int(line.split("|")[2].replace(",", "")) for line in page.part(part))
    assert f"{states / 1e6:.1f} million states" in page.PAGE.read_text(encoding="utf-8")


def test_the_map_shows_the_moves() -> None:
    assert page.part("moves", page.MAP) == page.move_lines(), REMEDY


def _need_all_searches() -> None:
    if len(searched) < len(SEARCHED) + len(RUNS):
        pytest.skip("only a run of all searches knows all transitions")


REMEDY = "the page is not of this protocol: run python -m tests.model --page"
