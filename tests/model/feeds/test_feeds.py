"""The protocol of bridges keeps its promises in every state; and each planted bug is found."""

from __future__ import annotations

import pytest

from tests.model.explore import explore
from tests.model.feeds.bridging import PLANTED, Bridging, Planted


@pytest.mark.parametrize("forgetting", [False, True])
def test_no_order_of_steps_loses_a_row_or_copies_it_twice(forgetting: bool) -> None:
    found = explore(Bridging(forgetting=forgetting))
    assert found.broken is None, found.trace
    assert found.states > 500


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_each_planted_bug_is_found(planted: Planted) -> None:
    assert explore(Bridging(planted)).broken is not None
