"""Bugs that are planted in the models, one at a time: each overrides one method of a model. The search must find the
promise that each breaks."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.changes import ALL
from tests.model.explore import ENDS, Model
from tests.model.key_state import BOOKS, OVERTAKEN, WAITS, Change, Key, State, Take, Write
from tests.model.keys import Keys

RELAY = frozenset({"settle", "expire"})
"""Without people."""
SCHEDULED = {"places": ("held", "held"), "scheduled": frozenset({0}), "messages": 3, "writers": 1}
"""Two are held, and the first is not due."""

PLANTED: dict[str, tuple[Model, str]] = {}
"""By what it is: the model with the bug in it, and the promise."""


def planted(promise: str, **limits: object) -> Callable[[Callable[..., Model]], Callable[..., Model]]:
    """Register a bug. Its docstring is its name."""

    def register(bug: Callable[..., Model]) -> Callable[..., Model]:
        name = str(bug.__doc__).rstrip(".")
        PLANTED[name] = bug(name, **limits), promise
        return bug

    return register


@planted(OVERTAKEN, verbs=RELAY)
class TakeIgnoresMarks(Keys):
    """A take does not heed open writers."""

    def may_read(self, take: Take, number: int) -> bool:
        return number < take.high


@planted(OVERTAKEN, verbs=RELAY)
class HeldRowsOfAnOlderSnapshot(Keys):
    """A take reads what is held in an older snapshot than the one in which it locks the free key."""

    stages = ("number", "marks", "snapshot", "free", "messages", "key", "commit")


@planted(BOOKS)
class TakeLeasesWhatItSaw(Keys):
    """A take leases all that it saw, also what a cancel has locked or deleted."""

    def may_lock(self, state: State, take: Take, number: int) -> bool:
        return True


@planted(OVERTAKEN)
class TakePassesALockedRow(Keys):
    """A take leases what stands behind a row that a cancel has locked."""

    def ours(self, take: Take, numbers: list[int]) -> list[int]:
        return [n for n in numbers if n in take.locked]


@planted(OVERTAKEN)
class ReadsOnAfterWhatStayed(Keys):
    """A take reads on after messages that it left in `ready`."""

    def next_start(self, take: Take, stayed: list[int]) -> int:
        return super().next_start(take, [])


@planted(ENDS, verbs=RELAY)
class SettleReadsOldMore(Keys):
    """A settle reads `more` in its snapshot, and not in the row's newest version."""

    def more(self, change: Change, key: Key) -> bool:
        return change.seen is not None and change.seen.more


@planted(ENDS, **SCHEDULED, fails=False, verbs=frozenset({"settle", "cancel"}))
class CancelSkipsTheKey(Keys):
    """A cancel leaves `due` as it is if another, as a take that sets `more`, has locked the key's row."""

    def skips_key(self) -> bool:
        return True


@planted(WAITS, at_once=2, verbs=ALL - {"redrive", "discard"})
class CancelLocksABusyKey(Keys):
    """A cancel locks the row of a key that a lease has."""

    def frees(self, state: State, n: int) -> bool:
        return state.key is not None


@planted(ENDS, places=("dead",), skip=True)
class RedriveOnlyUpdates(Keys):
    """A redrive updates the key's row, and there is none."""

    def _redrive(self, state: State, change: Change, key: Key | None) -> Write | None:
        return None if key is None else super()._redrive(state, change, key)
