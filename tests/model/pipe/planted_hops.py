"""Bugs in the hops: each overrides one method of the model, and breaks the promise that it names."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.pipe.hop_state import (
    ARRIVED,
    BOOKS,
    CAUSE,
    FENCED,
    HOLDER,
    NOW,
    ORDER,
    Db,
    Hand,
    Key,
    Lease,
    Row,
    State,
)
from tests.model.pipe.hops import Hops
from tests.model.planted import planted

SINGLES, DRAINS = frozenset({"single"}), frozenset({"drain"})
ONE = {"messages": 1, "keyed": False, "ways": SINGLES}
CRASH = {"messages": 1, "keyed": False, "crashes": True, "workers": 1}


@planted(HOLDER, **ONE)
class BeginsTwice(Hops):
    """Begin does not ask whether the lease has begun."""

    def may_begin(self, lease: Lease) -> bool:
        return not lease.over


@planted(HOLDER, **ONE)
class RecallsWhatHasBegun(Hops):
    """After a flush the recall takes back what a worker has begun."""

    def may_recall(self, lease: Lease) -> bool:
        return True


@planted(HOLDER, **ONE)
class RetryKeepsItsToken(Hops):
    """A retry by Celery keeps the old token, and a settle is repeated whose answer got lost."""

    def retry_token(self, state: State, hand: Hand) -> int:
        return hand.token


@planted(FENCED, **ONE)
class SettlesUnfenced(Hops):
    """A settle looks for the message, and not for the token."""

    def lease_to_settle(self, db: Db, hand: Hand) -> Lease | None:
        return next((lease for lease in db.leases if lease.numbers == hand.numbers), None)


@planted(CAUSE, **ONE)
class ExpireNotesNothing(Hops):
    """A begun lease that runs out leaves no note."""

    def note(self, code: str) -> str:
        return "" if code == "unsettled" else code


@planted(ARRIVED, **ONE)
class SpentIsSent(Hops):
    """A message without attempts left is archived as sent."""

    def outcome(self, row: Row, result: str) -> Row:
        return super().outcome(row, "sent" if result == "dead" else result)


@planted(ORDER, ways=DRAINS)
class GoesOnBehindAFailure(Hops):
    """A drain sends what stands behind a failure of its key."""

    def _stopped(self, numbers: tuple[int, ...], results: tuple[str, ...]) -> tuple[str, ...]:
        return results


@planted(ORDER, ways=SINGLES)
class TakesOfABusyKey(Hops):
    """A take does not ask whether the key is busy."""

    def takes(self, state: State, size: int) -> Iterator[tuple[tuple[int, ...], Db]]:
        for n, row in enumerate(state.db.rows):
            if row.place == "ready":
                yield (n,), state.db._replace(key=Key(0, NOW))


@planted(BOOKS, messages=1, keyed=False, ways=SINGLES, people=True)
class CancelsWhatIsLeased(Hops):
    """A cancel takes a message away from a worker."""

    def may_cancel(self, row: Row) -> bool:
        return super().may_cancel(row) or row.place == "leased"


@planted(CAUSE, **CRASH)
class CrashNotesNothing(Hops):
    """After a crash of the database nothing is noted."""

    def at_work(self, row: Row) -> bool:
        return False
