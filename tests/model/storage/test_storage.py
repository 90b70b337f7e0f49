"""The storage keeps its promises in every state, and the search notices when it does not."""

from __future__ import annotations

import pytest

from tests.model import page
from tests.model.storage.explore import Model, explore
from tests.model.storage.planted_keys import PLANTED
from tests.model.storage.variants import SEARCHED

REMEDY = "the page is not of these models: run python -m tests.model.storage"


@pytest.mark.parametrize("model", SEARCHED, ids=[model.name for model in SEARCHED])
def test_every_promise_holds_in_every_state(model: Model) -> None:
    found = explore(model)
    assert found.broken is None, f"\n{found}"
    assert page.variant_line(model.name, found) in page.part("storage"), REMEDY


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, promise = PLANTED[name]
    found = explore(bug)
    assert found.broken == promise, f"\n{found}"
    assert page.bug_line(name, found) in page.part("storage-bugs"), REMEDY
