"""Bugs, each planted in one place of what the storage does with keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.model.storage.explore import ENDS, Step
from tests.model.storage.key_state import OVERTAKEN, Change, Claim, Memory, Row, Rows, State, Writer
from tests.model.storage.keys import Keys
from tests.model.storage.planted import PLANTED, planted

__all__ = ["PLANTED"]

ONE: dict[str, Any] = {"keys": "aa", "claimers": 1}


@planted(ENDS, **ONE, people=False)
class MarksByItsFirstSnapshot(Keys):
    """A settle marks the held row that it saw as it began, before it waited for a claim to let go of its lease."""

    def waits_for(self, claim: Claim) -> frozenset[int]:
        return frozenset()

    def begun(self, state: State, change: Change) -> Change:
        return change._replace(has_looked=True, seen=self.held(state, change))

    def _go_on(self, state: State, change: Change, others: tuple[Change, ...]) -> Iterator[Step]:
        if state.claim is None or not change.locked & state.claim.locked:
            yield from super()._go_on(state, change, others)


@planted(ENDS, **ONE)
class SkipsWhatIsLocked(Keys):
    """A settle leaves no note if others have locked all that is held of its key."""

    def leaves_notes(self) -> bool:
        return False


@planted(ENDS, **ONE)
class TakesMarksOffWithoutALock(Keys):
    """A claim takes marks off, and does not lock what makes the key busy."""

    def locks(self, busy: int) -> frozenset[int]:
        return frozenset()


@planted(ENDS, **ONE)
class TakesMarksOffThoughASettleIsOnItsWay(Keys):
    """A claim takes marks off though another has locked what makes the key busy."""

    def is_sure(self, state: State, claim: Claim, busy: int) -> bool:
        return state.rows[busy] == claim.looked[busy]


@planted(ENDS, **ONE)
class SureOfWhatIsGone(Keys):
    """A claim takes marks off though what made the key busy as it looked is gone."""

    def is_sure(self, state: State, claim: Claim, busy: int) -> bool:
        return busy not in self._locked(state)


@planted(OVERTAKEN, **ONE)
class LooksTwice(Keys):
    """A claim looks for what makes a key busy in a later snapshot than for what is due."""

    def judged_by(self, state: State, claim: Claim) -> Rows:
        old = {n: claim.looked[n] for n in claim.locked if n < len(claim.looked)}
        return tuple(
            old.get(n, row if row.place in ("leased", "waiting", "dead") else row._replace(place="over"))
            for n, row in enumerate(state.rows)
        )


@planted(ENDS, **ONE)
class HeldWithoutAMark(Keys):
    """A claim that is not sure whether a key is still busy moves its first row to held without a mark."""

    def marked_of_put(self) -> int:
        return 0


@planted(ENDS, **ONE)
class SettleMarksNothing(Keys):
    """A settle marks nothing."""

    def marks_next(self, what: str) -> bool:
        return what.startswith("a person")


@planted(ENDS, **ONE)
class SettleEndsTheWholeLease(Keys):
    """A settle removes its lease, though it names only a part of the messages."""

    def unnamed(self, row: Row) -> Row:
        return row._replace(place="open", lease=-1)


@planted(ENDS, **ONE)
class DiscardMarksNothing(Keys):
    """To discard or to cancel a message marks nothing."""

    def marks_next(self, what: str) -> bool:
        return not what.startswith("a person")


@planted(ENDS, **ONE, skip=True)
class BehindWithoutAMark(Keys):
    """What was behind a message that died, with `on_dead = "skip"`, goes to held without a mark."""

    def marks_behind(self) -> bool:
        return False


@planted(ENDS, **ONE)
class RunOutWithoutAMark(Keys):
    """A bundle whose lease has run out goes to held without a mark."""

    def marks_what_runs_out(self) -> bool:
        return False


@planted(ENDS, **ONE, skip=True)
class BuriedWithoutAMark(Keys):
    """A claim that buries the first message of a key with `on_dead = "skip"` marks nothing."""

    def marked_of_buried(self) -> int:
        return 0


@planted(OVERTAKEN, **ONE)
class HeedsNoMarks(Keys):
    """A claim does not heed the marks of writers."""

    def may_read(self, claim: Claim, number: int, row: Row) -> bool:
        return number < claim.last


@planted(OVERTAKEN, **ONE)
class MarksBeforeTheLastNumber(Keys):
    """A claim reads the marks of writers before the last number."""

    def may_read(self, claim: Claim, number: int, row: Row) -> bool:
        return super().may_read(claim._replace(last=len(self.keys)), number, row)


@planted(ENDS, **ONE)
class FloorTooHigh(Keys):
    """The mark of a writer says one number too much."""

    def starts(self, writer: Writer) -> Writer:
        return writer._replace(floor=writer.floor + 1)


@planted(ENDS, **ONE)
class PlaceBehindAMark(Keys):
    """A claimer does not go back for what an open transaction may still commit."""

    def start(self, claim: Claim, memory: Memory) -> int:
        return memory.place


@planted(OVERTAKEN, **ONE)
class WaitingIsNotBusy(Keys):
    """A key is not busy while a message of it waits."""

    def is_at_work(self, row: Row) -> bool:
        return row.place != "waiting" and super().is_at_work(row)


@planted(OVERTAKEN, **ONE)
class DeadIsNotBusy(Keys):
    """A key is not busy while a message of it is dead, though `on_dead` is "block"."""

    def is_at_work(self, row: Row) -> bool:
        return row.place != "dead" and super().is_at_work(row)


@planted(OVERTAKEN, **ONE)
class LeasedIsNotBusy(Keys):
    """A key is not busy while a message of it is leased."""

    def is_at_work(self, row: Row) -> bool:
        return row.place != "leased" and super().is_at_work(row)


@planted(OVERTAKEN, **ONE)
class SkippedIsGone(Keys):
    """A claim does not read a lease that another was taking back when its claimer looked for such leases."""

    def takes_for_gone(self, change: Change) -> bool:
        return change.what.endswith("runs out")


@planted(OVERTAKEN, **ONE)
class EndedEarlyIsGone(Keys):
    """A claim does not read a lease that another was ending early when its claimer looked for leases that ran out."""

    def takes_for_gone(self, change: Change) -> bool:
        return change.what.endswith("is ended early")
