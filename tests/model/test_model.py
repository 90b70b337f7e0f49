"""Every promise holds in every state, and each planted bug is found."""

from __future__ import annotations

import pytest

from tests.model.changes import ALL
from tests.model.explore import ENDS, Model, explore
from tests.model.key_state import BOOKS, OVERTAKEN, WAITS, Change, Key, State, Take
from tests.model.keys import Keys

RELAY = frozenset({"settle", "retry", "expire"})
"""Without people."""
FIRST = frozenset({0})

MODELS: list[Model] = [
    Keys("two of a key, people"),
    Keys("two of a key, people, `on_dead = skip`", skip=True),
    Keys("two of a key, the first is scheduled", scheduled=FIRST),
    Keys("two of a key, two changes at once", at_once=2),
    Keys("two held, the first is scheduled, and a new one", places=("held", "held"), scheduled=FIRST, messages=3,
         writers=1, fails=False, verbs=frozenset({"settle", "cancel"})),
    Keys("two dead letters of a key, and a new one", places=("dead", "dead"), messages=3, writers=1,
         verbs=ALL - {"cancel", "retry"}),
    Keys("three of a key", messages=3, verbs=RELAY - {"retry"}, fails=False),
]  # fmt: skip
WEEKLY: list[Model] = [
    Keys("two of a key, people, `on_dead = skip`, two changes at once", skip=True, at_once=2),
    Keys("three of a key, failures", messages=3, verbs=RELAY),
    Keys("two of a key, two takes at once", takes=2, verbs=RELAY - {"retry"}),
]


def every_promise_holds(model: Model) -> None:
    result = explore(model)
    assert result.broken is None, f"\n{result}"
    assert result.states > 500


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_promise_holds_in_every_state(model: Model) -> None:
    every_promise_holds(model)


@pytest.mark.weekly
@pytest.mark.parametrize("model", WEEKLY, ids=lambda model: model.name)
def test_every_promise_holds_in_the_many_states_of_a_big_model(model: Model) -> None:
    every_promise_holds(model)


class TakeIgnoresMarks(Keys):
    def may_read(self, take: Take, number: int) -> bool:
        return number < take.high


class TakeLeasesWhatItSaw(Keys):
    def may_lock(self, state: State, take: Take, number: int) -> bool:
        return True


class SettleReadsOldMore(Keys):
    def more(self, change: Change, key: Key) -> bool:
        return change.seen is not None and change.seen.more


class CancelLocksABusyKey(Keys):
    def frees(self, state: State, n: int) -> bool:
        return state.key is not None


PLANTED = [
    (TakeIgnoresMarks("a take does not heed open writers", verbs=RELAY - {"retry"}), OVERTAKEN),
    (TakeLeasesWhatItSaw("a take leases all that it saw, also what a cancel has locked or deleted"), BOOKS),
    (SettleReadsOldMore("a settle reads `more` in its snapshot", verbs=RELAY - {"retry"}), ENDS),
    (CancelLocksABusyKey("a cancel locks a busy key", at_once=2, verbs=ALL - {"redrive", "discard"}), WAITS),
]
"""Bugs, and the promise that each breaks: the search notices."""


@pytest.mark.parametrize(("bug", "promise"), PLANTED, ids=[bug.name for bug, _ in PLANTED])
def test_a_planted_bug_is_found(bug: Keys, promise: str) -> None:
    result = explore(bug)
    assert result.broken == promise, f"\n{result}"
