"""What the steps have in common: how one is told, what a search begins with, and the fence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.state import Code, Giving, Hand, Held, Horizon, Row, Rows, Task, Ticket

Kind = Literal["work", "time", "fault", "person"]


class Step(NamedTuple):
    """One way in which something goes on."""

    what: str
    messages: tuple[int, ...]
    rows: Rows
    kind: Kind = "work"
    hand: Hand = ()
    """What the worker who did it has in hand afterwards."""
    tasks: tuple[Task, ...] = ()
    """Put into the queue."""
    stays: bool = False
    """The task that was taken is still in the queue, and will be delivered once more."""
    granted: tuple[int, ...] = ()
    """Messages with a new lease: what others have of them is not current any more."""
    giving: tuple[Giving, ...] = ()
    horizon: Horizon | None = None

    def __str__(self) -> str:
        return self.what.format(" and ".join(f"m{message + 1}" for message in self.messages))


@dataclass(frozen=True)
class Variant:
    """What the search begins with."""

    name: str
    keyed: bool = False
    """The messages share a key."""
    skip: bool = False
    """A dead message does not hold up its key (`on_dead = "skip"`)."""
    together: bool = False
    """All messages are written in one transaction, else each in its own."""
    messages: int = 2
    max_attempts: int = 2
    outages: bool = True
    people: bool = True
    claims: int = 1
    """Claims that may be on their way to the broker at the same time."""


def change(rows: Rows, message: int, row: Row) -> Rows:
    return (*rows[:message], row, *rows[message + 1 :])


class Base:
    """What all that the protocol consists of may ask."""

    keeps_tasks = False
    """Whether tasks that can't be begun any more stay in the queue. To leave them out makes the search faster; one test
    shows that it changes nothing."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    def _released(self, rows: Rows, ticket: Ticket | Held) -> Rows:
        row = rows[ticket.message]
        if not self.may_release(row, ticket):
            return rows
        return change(rows, ticket.message, row._replace(leased=False, due=False))

    def _is_spent(self, row: Row) -> bool:
        return row.attempts >= self.variant.max_attempts

    def holds(self, row: Row, ticket: Ticket | Held) -> bool:
        """The fence: the token. Here it is the lease and the attempt, because the tables give each delivery a token."""
        return row.place == "pending" and row.leased and ticket.current and row.attempts == ticket.attempt

    def may_release(self, row: Row, ticket: Ticket | Held) -> bool:
        """`deliver/release.sql`."""
        return self.holds(row, ticket) and not row.begun

    def _archived(self, row: Row, place: Literal["sent", "discarded"]) -> Row:
        return row._replace(place=place, due=False, leased=False, begun=False, attempts=0)

    def _dead(self, row: Row, code: Code) -> Row:
        passed = row.passed or self._lets_others_pass()
        return row._replace(place="dead", due=False, leased=False, begun=False, attempts=0, code=code, passed=passed)

    def _lets_others_pass(self) -> bool:
        return self.variant.keyed and self.variant.skip
