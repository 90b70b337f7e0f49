"""Bugs, each planted in one place of the keys, with the promise that the search must find broken."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.explore import ENDS
from tests.model.pipe.changes import ALL
from tests.model.pipe.key_state import BOOKS, NOW, OVERTAKEN, WAITS, Change, Key, State, Take, Write, Writer
from tests.model.pipe.keys import Keys

PLANTED: dict[str, tuple[Keys, str]] = {}
"""By what it is: the model with it, and the promise."""

RELAY = frozenset({"settle", "expire"})
"""Without people."""
SCHEDULED = {"places": ("held", "held"), "scheduled": frozenset({0})}
"""Two are held, and the first is not due."""
DEAD = {"places": ("dead", "dead"), "messages": 3, "writers": 1, "verbs": ALL - {"cancel"}}


def planted(promise: str, **limits: object) -> Callable[[Callable[..., Keys]], Callable[..., Keys]]:
    """Register a bug: it is named by its docstring."""

    def register(bug: Callable[..., Keys]) -> Callable[..., Keys]:
        name = str(bug.__doc__).rstrip(".")
        PLANTED[name] = bug(name, **limits), promise
        return bug

    return register


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
class TakeReadsMarksFirst(Keys):
    """A take reads the marks before the last number."""

    stages = ("marks", "number", "free", "snapshot", "messages", "key", "commit")


@planted(OVERTAKEN, verbs=RELAY)
class WriterLeavesNoMark(Keys):
    """A transaction writes a message without a mark."""

    def starts(self, writer: Writer) -> Writer:
        return writer._replace(floor=-1)


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


@planted(WAITS, **SCHEDULED, messages=3, writers=1)
class TakeInsertsWhatItSees(Keys):
    """A take tries to insert the row of every key, also if its snapshot shows one."""

    def sees_key(self, take: Take) -> bool:
        return False


@planted(ENDS, verbs=RELAY)
class MoreIsNotSet(Keys):
    """A take that moves messages of a busy key aside does not set `more`."""

    def noted(self, take: Take, key: Key) -> Key:
        return key


@planted(ENDS, verbs=RELAY | {"retry"})
class MoreOfAnOldVersion(Keys):
    """A take sets `more` only in the version of the row that its snapshot shows, as a join by `ctid` does."""

    def noted(self, take: Take, key: Key) -> Key:
        return super().noted(take, key) if key == take.key else key


@planted(OVERTAKEN, **DEAD)
class TakeForgetsDeadLetters(Keys):
    """A take does not look for another dead letter of the key."""

    def dead(self, take: Take) -> list[int]:
        return []


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
class TakeDeletesTheRowOfACancelledKey(Keys):
    """A take deletes a key's row though a cancel, which may be rolled back, has locked a message of it."""

    def decide_free(self, state: State, take: Take, fresh: list[int]) -> tuple[list[int], Key | None, str]:
        run, key, told = super().decide_free(state, take, fresh)
        return run, key if run or take.locked or self.dead(take) else None, told


@planted(ENDS, **SCHEDULED)
class TakeJudgesALockedHead(Keys):
    """A take makes the key wait for the time of a message that a cancel has locked."""

    def decide_free(self, state: State, take: Take, fresh: list[int]) -> tuple[list[int], Key | None, str]:
        run, key, told = super().decide_free(state, take, fresh)
        held = self._held(take)
        return run, key and key._replace(due=held[0]) if held and held[0] in state.early else key, told


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


@planted(OVERTAKEN, verbs=RELAY, places=("held", "held"))
class SettleKeepsFirst(Keys):
    """A settle that puts a message back does not lower `first`."""

    def _settle(self, state: State, change: Change, key: Key) -> Write:
        wrote = super()._settle(state, change, key)
        return wrote if wrote.key is None else Write(wrote.key._replace(first=key.first), anew=True)


@planted(ENDS, verbs=RELAY)
class ExpireLeavesTheKey(Keys):
    """A lease that runs out does not free its key."""

    def _expire(self, state: State, change: Change, key: Key) -> Write | None:
        return None


# --- people ---


@planted(ENDS, **SCHEDULED)
class CancelForgetsDue(Keys):
    """A cancel of the message for which the key waits leaves `due` as it is."""

    def frees(self, state: State, n: int) -> bool:
        return False


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


@planted(ENDS, skip=True)
class RedriveOfABusyKeyKeepsDue(Keys):
    """A redrive leaves `due` of a leased key, so what fails behind it makes it wait."""

    def _redrive(self, state: State, change: Change, key: Key | None) -> Write | None:
        wrote = super()._redrive(state, change, key)
        return Write(wrote.key._replace(due=key.due)) if wrote and wrote.key and key and key.leased else wrote


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


@planted(ENDS, **DEAD)
class DiscardJudgesASnapshot(Keys):
    """A discard leaves a key alone that its snapshot shows as due."""

    def _discard(self, state: State, change: Change, key: Key | None) -> Write | None:
        return None if change.seen and state.is_due(change.seen) else super()._discard(state, change, key)
