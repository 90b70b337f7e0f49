"""Bugs in the keys: each overrides one method of the model, and breaks the promise that it names."""

from __future__ import annotations

from tests.model.explore import ENDS
from tests.model.pipe.changes import ALL
from tests.model.pipe.key_state import BOOKS, NOW, OVERTAKEN, WAITS, Change, Key, State, Take, Write
from tests.model.pipe.keys import Keys
from tests.model.planted import planted

RELAY = frozenset({"settle", "expire"})
"""Without people."""
SCHEDULED = {"places": ("held", "held"), "scheduled": frozenset({0})}
"""Two are held, and the first is not due."""
DEAD = {"places": ("dead", "dead"), "messages": 3, "writers": 1, "verbs": ALL - {"cancel"}}


# --- the take ---


@planted(OVERTAKEN, verbs=RELAY)
class TakeIgnoresMarks(Keys):
    """A take does not heed open writers."""

    def may_read(self, take: Take, number: int) -> bool:
        return number < take.high


@planted(OVERTAKEN, verbs=RELAY)
class TakeReadsMarksLate(Keys):
    """A take reads the marks after its second statement has begun."""

    stages = ("number", "free", "snapshot", "marks", "messages", "key", "commit")


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


@planted(WAITS, **SCHEDULED, messages=3, writers=1)
class TakeWaitsForTheKey(Keys):
    """A take waits for the row of a busy key that another has locked."""

    def waits_for_key(self) -> bool:
        return True


@planted(ENDS, verbs=RELAY | {"retry"})
class MoreOfAnOldVersion(Keys):
    """A take sets `more` only in the version of the row that its snapshot shows, as a join by `ctid` does."""

    def noted(self, take: Take, key: Key) -> Key:
        return super().noted(take, key) if key == take.key else key


@planted(OVERTAKEN, **DEAD)
class MoreWithoutDeadLetters(Keys):
    """`more` of a leased key says only whether messages are held, not that a dead letter is left."""

    def decide_free(self, state: State, take: Take, fresh: list[int]) -> tuple[list[int], Key | None, str]:
        run, key, told = super().decide_free(state, take, fresh)
        if run and key:
            left = {*self._held(take), *fresh} - {*run}
            key = key._replace(more=bool(left))
        return run, key, told


@planted(OVERTAKEN)
class ReadsOnAfterWhatStayed(Keys):
    """A take reads on after messages that it left in `ready`."""

    def next_start(self, take: Take, stayed: list[int]) -> int:
        return super().next_start(take, [])


@planted(OVERTAKEN, verbs=RELAY)
class ReadsOnAfterMarks(Keys):
    """A take reads on after numbers that an open transaction may still commit."""

    def next_start(self, take: Take, stayed: list[int]) -> int:
        return min([take.high, *stayed])


# --- settles, and leases that run out ---


@planted(ENDS, verbs=RELAY)
class SettleReadsOldMore(Keys):
    """A settle reads `more` in its snapshot, and not in the row's newest version."""

    def more(self, change: Change, key: Key) -> bool:
        return change.seen is not None and change.seen.more


@planted(ENDS, verbs=RELAY)
class ExpireLeavesTheKey(Keys):
    """A lease that runs out does not free its key."""

    def _expire(self, state: State, change: Change, key: Key) -> Write | None:
        return None


# --- people ---


@planted(ENDS, **SCHEDULED, messages=3, writers=1, fails=False, verbs=frozenset({"settle", "cancel"}))
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


@planted(ENDS, skip=True, places=("dead", "held"))
class RedriveKeepsFirst(Keys):
    """A redrive does not lower `first`."""

    def _redrive(self, state: State, change: Change, key: Key | None) -> Write | None:
        wrote = super()._redrive(state, change, key)
        return Write(wrote.key._replace(first=key.first)) if wrote and wrote.key and key else wrote


@planted(OVERTAKEN, skip=True, at_once=2)
class TryFreesABusyKey(Keys):
    """A try gives the key's row a time, and takes its token away."""

    def _try(self, state: State, change: Change, key: Key | None) -> Write | None:
        wrote = super()._try(state, change, key)
        return Write(wrote.key._replace(leased=False, due=NOW)) if wrote and wrote.key else wrote


@planted(ENDS, **DEAD)
class DiscardForgetsDue(Keys):
    """A discard leaves a key blocked."""

    def _discard(self, state: State, change: Change, key: Key | None) -> Write | None:
        return None
