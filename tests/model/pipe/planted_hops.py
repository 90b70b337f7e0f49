"""Bugs, each planted in one place of the hops, with the promise that the search must find broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.model.explore import ENDS
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

PLANTED: dict[str, tuple[Hops, str]] = {}
"""By what it is: the model with it, and the promise."""

SINGLES, DRAINS = frozenset({"single"}), frozenset({"drain"})
ONE = {"messages": 1, "keyed": False, "ways": SINGLES}
CRASH = {"messages": 1, "keyed": False, "crashes": True, "workers": 1}


def planted(promise: str, **limits: object) -> Callable[[Callable[..., Hops]], Callable[..., Hops]]:
    """Register a bug: it is named by its docstring."""

    def register(bug: Callable[..., Hops]) -> Callable[..., Hops]:
        name = str(bug.__doc__).rstrip(".")
        PLANTED[name] = bug(name, **limits), promise
        return bug

    return register


@planted(HOLDER, **ONE)
class BeginsTwice(Hops):
    """Begin does not ask whether the lease has begun."""

    def may_begin(self, lease: Lease) -> bool:
        return not lease.over


@planted(HOLDER, **ONE)
class BeginsLate(Hops):
    """Begin neither asks whether the lease has run out nor prolongs it."""

    def may_begin(self, lease: Lease) -> bool:
        return not lease.begun

    def begun(self, lease: Lease) -> Lease:
        return lease._replace(begun=True)


@planted(HOLDER, **ONE)
class RecallsWhatHasBegun(Hops):
    """After a flush the recall takes back what a worker has begun."""

    def may_recall(self, lease: Lease) -> bool:
        return True


@planted(ENDS, **ONE)
class QueuedForEver(Hops):
    """The lease of a single in the queue has no end."""

    def runs_out(self, lease: Lease) -> bool:
        return lease.begun

    def may_recall(self, lease: Lease) -> bool:
        return False


@planted(HOLDER, **ONE)
class RetryKeepsItsToken(Hops):
    """A retry by Celery keeps the old token, and a settle is repeated whose answer got lost."""

    def retry_token(self, state: State, hand: Hand) -> int:
        return hand.token


@planted(ENDS, messages=1, ways=SINGLES)
class RetryForgetsTheKey(Hops):
    """A retry by Celery does not put its new token into the key's row."""

    def rekeyed(self, key: Key, token: int) -> Key:
        return key


@planted(FENCED, **ONE)
class SettlesUnfenced(Hops):
    """A settle looks for the message, and not for the token."""

    def lease_to_settle(self, db: Db, hand: Hand) -> Lease | None:
        return next((lease for lease in db.leases if lease.numbers == hand.numbers), None)


@planted(ENDS, ways=DRAINS, max_attempts=1)
class SettleForgetsMore(Hops):
    """A settle deletes the key's row though more is held."""

    def freed(self, db: Db, lease: Lease, due: int, *, back: bool) -> Db:
        done = super().freed(db, lease, due, back=back)
        return done._replace(key=None) if db.key and not back else done


@planted(ENDS, messages=1, ways=DRAINS, max_attempts=1)
class ExpireForgetsTheKey(Hops):
    """A lease that runs out does not free its key."""

    def back(self, db: Db, lease: Lease) -> Db:
        return super().back(db, lease)._replace(key=db.key)


@planted(CAUSE, **ONE)
class ExpireNotesNothing(Hops):
    """A begun lease that runs out leaves no note."""

    def note(self, code: str) -> str:
        return "" if code == "unsettled" else code


@planted(CAUSE, **ONE)
class FailureNotesNothing(Hops):
    """A failure leaves no note."""

    def note(self, code: str) -> str:
        return "" if code == "failed" else code


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


@planted(ENDS, messages=1, keyed=False, ways=DRAINS)
class SlotForEver(Hops):
    """The slot of a drain that was killed has no end."""

    def slot_ends(self) -> bool:
        return False


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


@planted(CAUSE, **CRASH)
class CrashNotesWhatIsDue(Hops):
    """After a crash of the database only what is due gets a note, though begins are undone, too."""

    def at_work(self, row: Row) -> bool:
        return super().at_work(row) and row.place != "leased"
