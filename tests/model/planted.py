"""Bugs, each planted in one place of the protocol, with the promise that the search must find broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.model import properties
from tests.model.base import Step, Variant, change
from tests.model.protocol import Protocol
from tests.model.state import FAILED, Hand, Held, Horizon, Row, Rows, Ticket

PLAIN = Variant("without a key", people=False)
KEYED = Variant("with a key", keyed=True, people=False)
ONE = Variant("one message", messages=1, people=False)
PEOPLE = Variant("with people", people=True)

Bug = type[Protocol]
PLANTED: dict[str, tuple[Bug, Variant, str]] = {}


def planted(promise: str, variant: Variant = PLAIN) -> Callable[[Bug], Bug]:
    """Register a bug: it is named by its docstring."""

    def register(bug: Bug) -> Bug:
        PLANTED[str(bug.__doc__).rstrip(".")] = bug, variant, promise
        return bug

    return register


class KeepsTasks(Protocol):
    """Tasks that the protocol as it is would never begin may be begun here."""

    keeps_tasks = True


@planted(properties.LOST)
class SettledBeforeTheSend(Protocol):
    """The row is settled as sent before the send."""

    def begun(self, row: Row) -> Row:
        return self._archived(row, "sent")


@planted(properties.ONE_HOLDER)
class NoBegin(KeepsTasks):
    """The worker sends what its task says, without a begin."""

    def may_begin(self, row: Row, ticket: Ticket) -> bool:
        return row.place == "pending"


@planted(properties.ONE_HOLDER)
class BeginWithoutAttempt(KeepsTasks):
    """Begin does not ask whether the send of this token has begun, and a retry keeps the token."""

    def may_begin(self, row: Row, ticket: Ticket) -> bool:
        return row.place == "pending" and row.leased and ticket.current and not row.due


@planted(properties.FENCED)
class BeginWithoutLease(KeepsTasks):
    """Begin does not compare the token."""

    def may_begin(self, row: Row, ticket: Ticket) -> bool:
        return row.place == "pending" and row.attempts == ticket.attempt and not row.due


@planted(properties.ONE_HOLDER)
class AttemptCountedAtTheSettle(KeepsTasks):
    """Begin does not note that the send has begun."""

    def begun(self, row: Row) -> Row:
        return row._replace(begun=True)


@planted(properties.FENCED)
class SettleUnfenced(Protocol):
    """Settle looks for the id alone."""

    def may_settle(self, row: Row, held: Held) -> bool:
        return row.place == "pending"


@planted(properties.FENCED)
class ReleaseUnfenced(Protocol):
    """A lease is given back by the id alone."""

    def may_release(self, row: Row, ticket: Ticket | Held) -> bool:
        return row.place == "pending" and not row.begun


@planted(properties.FENCED)
class ReleaseOfWhatIsBegun(Protocol):
    """The claim, told that the broker refused its task, gives back a message that was begun."""

    def may_release(self, row: Row, ticket: Ticket | Held) -> bool:
        return row.place == "pending" and row.leased and ticket.current


@planted(properties.ONE_HOLDER)
class RetryBeforeTheRow(Protocol):
    """The retry goes to the queue before the row is written."""

    def settle(self, rows: Rows, hand: Hand, place: int, rest: Hand) -> Iterator[Step]:
        held = hand[place]
        if held.stage != FAILED or self._is_spent(rows[held.message]):
            yield from super().settle(rows, hand, place, rest)
            return
        left = (*hand[:place], held._replace(stage="unwritten"), *hand[place + 1 :])
        task = (Ticket(held.message, held.attempt, held.current),)
        yield Step("the retry of {} goes to the queue", (held.message,), rows, hand=left, tasks=(task,))

    def _settle_or_after(self, rows: Rows, hand: Hand, place: int) -> Iterator[Step]:
        held = hand[place]
        if held.stage != "unwritten":
            yield from super()._settle_or_after(rows, hand, place)
            return
        row, rest = rows[held.message], (*hand[:place], *hand[place + 1 :])
        if self.may_settle(row, held):
            row = row._replace(begun=False, due=False, code="failed")
        yield Step("the row of {} is written", (held.message,), change(rows, held.message, row), hand=rest)


@planted(properties.EXPIRED)
class ClockThatRunsAhead(Protocol):
    """The claim tells by its host's clock, which runs ahead, whether a lease has run out."""

    def is_due(self, row: Row) -> bool:
        return row.place == "pending" and (row.due or row.leased)


@planted(properties.EXPIRED)
class ClaimWithoutLock(Protocol):
    """The claim reads what is due, and leases it a moment later without a lock."""

    def look(self, rows: Rows, horizon: Horizon | None) -> Iterator[Step]:
        due = [n for n, row in enumerate(rows) if self.is_due(row)]
        if horizon is None and due:
            yield Step("a claim reads that {} is due", (due[0],), rows, horizon=Horizon(due[0], True))

    def claimable(self, rows: Rows, reach: int) -> Iterable[tuple[int, ...]]:
        return [(reach,)] if reach < len(rows) and rows[reach].place == "pending" else []


@planted(properties.EXPLAINED)
class NoCauseAtTheClaim(Protocol):
    """The claim does not note that a send was begun and never settled."""

    def leased(self, row: Row) -> Row:
        return super().leased(row._replace(begun=False))


@planted(properties.ENDS, ONE)
class LeaseThatNeverEnds(Protocol):
    """The claim takes nothing back of which the lease has run out."""

    def is_due(self, row: Row) -> bool:
        return super().is_due(row) and not row.leased


@planted(properties.LOST)
class FailedIsArchived(Protocol):
    """A message without attempts left is archived as if it were sent."""

    def _dead(self, row: Row, code: object) -> Row:
        return self._archived(row, "sent")


@planted(properties.COUNTED)
class NoEndOfAttempts(Protocol):
    """The claim does not look at the attempts: a message that kills its worker comes back for ever."""

    def leased(self, row: Row) -> Row:
        return row._replace(leased=True, due=False, begun=False, code="unsettled" if row.begun else row.code)


@planted(properties.EXPIRED, PEOPLE)
class DiscardOfWhatIsOnItsWay(Protocol):
    """A person may discard a message that is being sent."""

    def may_discard(self, row: Row) -> bool:
        return True


@planted(properties.OVERTAKEN, KEYED)
class MarksIgnored(Protocol):
    """The claim does not heed transactions that are still open."""

    @staticmethod
    def _are_writing(rows: Rows) -> bool:
        return False


@planted(properties.OVERTAKEN, KEYED)
class MarksBeforeTheNumber(Protocol):
    """The claim reads the marks of open transactions before it reads the last number."""

    def look(self, rows: Rows, horizon: Horizon | None) -> Iterator[Step]:
        if horizon is None and self._are_writing(rows):
            floor = min((n for n, row in enumerate(rows) if row.place == "open"), default=len(rows))
            yield Step("a claim reads the marks of open transactions", (), rows, horizon=Horizon(floor))
        elif horizon is not None and not horizon.marks:
            written = sum(row.place != "unwritten" for row in rows)
            last = min(horizon.last, written)
            yield Step("a claim reads the last number", (), rows, horizon=Horizon(last, True))


@planted(properties.OVERTAKEN, KEYED)
class NotOnlyTheHead(Protocol):
    """The claim leases what is due of a key, whether it is the head or not."""

    def claimable(self, rows: Rows, reach: int) -> Iterable[tuple[int, ...]]:
        return [(n,) for n, row in enumerate(rows[:reach]) if self.is_due(row)]


@planted(properties.OVERTAKEN, KEYED)
class FailureDoesNotStopTheRun(Protocol):
    """A worker goes on with a key after one of its messages has failed."""

    def goes_on_after(self, stage: str) -> bool:
        return True


@planted(properties.OVERTAKEN, KEYED)
class EachRetriedByItself(Protocol):
    """If the answer to a run gets lost, Celery retries each of its messages by itself."""

    def behind_a_failure(self) -> str:
        return FAILED


@planted(properties.OVERTAKEN, KEYED)
class GapIgnored(Protocol):
    """A worker sends the messages of a key that it could begin, though an earlier one was not begun."""

    def heeds_gaps(self) -> bool:
        return False


@planted(properties.OVERTAKEN, KEYED)
class DeadHeadPassed(Protocol):
    """A dead message does not hold up its key, though it should."""

    def _holds_up(self, row: Row) -> bool:
        return False
