"""The worker: begin, send and settle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.model.base import Base, Step, change
from tests.model.state import (
    BEHIND,
    FAILED,
    OUTAGE,
    REFUSED,
    RETRY,
    SENT,
    UNBEGUN,
    UNSENT,
    Code,
    Hand,
    Held,
    Row,
    Rows,
    Task,
    Ticket,
)


class Sending(Base):
    """`relay/send.py` and `relay/settle.py`, and the statements that they run."""

    def take(self, rows: Rows, task: Task) -> Iterator[Step]:
        """An idle worker takes a task. The broker may deliver it once more."""
        about = tuple(ticket.message for ticket in task)
        ready = [ticket for ticket in task if self.may_begin(rows[ticket.message], ticket)]
        for stays in (False, True):
            more = ", and the broker keeps the task" if stays else ""
            if ready:
                hand, after = self._begun(rows, task, ready)
                began = tuple(ticket.message for ticket in ready)
                yield Step(f"a worker begins {{}}{more}", began, after, hand=hand, stays=stays)
                unbegun = tuple(Held(*ticket, UNBEGUN) for ticket in task)
                what = f"a worker finds no slot for {{}}, or its circuit is open{more}"
                yield Step(what, about, rows, hand=unbegun, stays=stays)
            elif not stays:
                yield Step("a worker can't begin {}, and drops the task", about, rows)
        yield Step("the task of {} gets lost", about, rows, "fault")

    def _begun(self, rows: Rows, task: Task, ready: Sequence[Ticket]) -> tuple[Hand, Rows]:
        hand: list[Held] = []
        gap = False
        for ticket in task:
            if ticket not in ready:
                gap = True
                continue
            row = self.begun(rows[ticket.message])
            rows = change(rows, ticket.message, row)
            stage = BEHIND if gap and self.heeds_gaps() else UNSENT
            hand.append(Held(ticket.message, row.attempts, ticket.current, stage))
        return tuple(hand), rows

    def heeds_gaps(self) -> bool:
        """`send._safe_to_send`: what follows a message that could not be begun is not sent, if it has a key."""
        return self.variant.keyed

    def may_begin(self, row: Row, ticket: Ticket) -> bool:
        """`deliver/begin.sql`."""
        return self.holds(row, ticket) and not row.due

    def begun(self, row: Row) -> Row:
        """`deliver/begin.sql`: what it makes of a row. The tables count the attempt as it is settled, or runs out."""
        code: Code = "unsettled" if row.begun else row.code
        return row._replace(attempts=row.attempts + 1, begun=True, code=code)

    def could_begin(self, row: Row, ticket: Ticket) -> bool:
        """Whether a task that waits could still begin a message."""
        lives = row.place in ("open", "pending") and row.leased and ticket.current
        return lives and not row.due and ticket.attempt >= row.attempts

    def work(self, rows: Rows, hand: Hand) -> Iterator[Step]:
        """A worker goes on with what it has in hand, or dies."""
        unsent = next((n for n, held in enumerate(hand) if held.stage == UNSENT), None)
        if unsent is not None:
            yield from self.send(rows, hand, unsent)
        else:
            first = min(range(len(hand)), key=lambda n: (hand[n].stage != SENT, n))
            yield from self._settle_or_after(rows, hand, first)
        about = tuple(held.message for held in hand)
        yield Step("the worker of {} dies", about, rows, "fault")

    def send(self, rows: Rows, hand: Hand, place: int) -> Iterator[Step]:
        """`Publisher.publish`: with no transaction open. An error does not tell whether the message has arrived."""
        held = hand[place]
        about, row = (held.message,), rows[held.message]
        there = change(rows, held.message, row._replace(arrived=min(2, row.arrived + 1)))
        yield Step("{} is sent", about, there, hand=self._with(hand, place, SENT))
        yield Step("the send of {} fails", about, rows, hand=self._with(hand, place, FAILED))
        yield Step("the send of {} fails, yet it arrived", about, there, hand=self._with(hand, place, FAILED))
        refused = change(rows, held.message, row._replace(passed=row.passed or self._lets_others_pass()))
        yield Step("the destination refuses {} for good", about, refused, hand=self._with(hand, place, REFUSED))
        if self.variant.outages:
            yield Step("{} meets an outage", about, rows, hand=self._with(hand, place, OUTAGE))
        if self.variant.keyed and len(hand) > 1 and place == 0:
            yield from self._send_at_once(rows, hand)

    def _send_at_once(self, rows: Rows, hand: Hand) -> Iterator[Step]:
        """`RedisStreamPublisher`: it takes a run at once. If its answer gets lost, any number of them have arrived."""
        about = tuple(held.message for held in hand)
        lost = tuple(held._replace(stage=self.behind_a_failure() if n else FAILED) for n, held in enumerate(hand))
        there = rows
        for message in (None, *about):
            if message is not None:
                row = there[message]
                there = change(there, message, row._replace(arrived=min(2, row.arrived + 1)))
            yield Step("the answer to the run of {} gets lost", about, there, hand=lost)
        sent = tuple(held._replace(stage=SENT) for held in hand)
        yield Step("the run of {} is sent at once", about, there, hand=sent)

    def behind_a_failure(self) -> str:
        """`send._not_by_themselves`: like an outage, it goes back to the table."""
        return OUTAGE

    def _with(self, hand: Hand, place: int, stage: str) -> Hand:
        """`order.send_in_order`: the first failure of a key stops those behind it."""
        rest = hand[place + 1 :]
        if not self.goes_on_after(stage):
            rest = tuple(held._replace(stage=BEHIND) for held in rest)
        return (*hand[:place], hand[place]._replace(stage=stage), *rest)

    def goes_on_after(self, stage: str) -> bool:
        """Whether what follows in the bundle is sent too."""
        return not self.variant.keyed or stage == SENT or (stage == REFUSED and self.variant.skip)

    def _settle_or_after(self, rows: Rows, hand: Hand, place: int) -> Iterator[Step]:
        held, rest = hand[place], (*hand[:place], *hand[place + 1 :])
        about = (held.message,)
        if held.stage == RETRY:
            task = (Ticket(held.message, held.attempt, held.current),)
            yield Step("the retry of {} goes to the queue", about, rows, hand=rest, tasks=(task,))
            refused = (*hand[:place], held._replace(stage=UNBEGUN), *hand[place + 1 :])
            yield Step("the broker refuses the retry of {}", about, rows, "fault", hand=refused)
        elif held.stage == UNBEGUN:
            yield Step("the worker gives the lease of {} back", about, self._released(rows, held), hand=rest)
        elif not self.may_settle(rows[held.message], held):
            yield Step("the worker can't settle {}: it is not its own any more", about, rows, hand=rest)
        else:
            yield from self.settle(rows, hand, place, rest)

    def may_settle(self, row: Row, held: Held) -> bool:
        """`deliver/sent.sql` and `deliver/settle.sql`."""
        return self.holds(row, held)

    def settle(self, rows: Rows, hand: Hand, place: int, rest: Hand) -> Iterator[Step]:
        """Record an outcome: `retry.judge`, and `deliver/settle.sql`."""
        held = hand[place]
        about, row = (held.message,), rows[held.message]

        def step(what: str, after: Row, left: Hand = rest) -> Step:
            return Step(what, about, change(rows, held.message, after), hand=left)

        waits = row._replace(begun=False, leased=False, due=False)
        if held.stage == SENT:
            yield step("{} is settled as sent", self._archived(row, "sent"))
        elif held.stage == BEHIND:
            at_once = waits._replace(attempts=row.attempts - 1, due=True)
            yield step("{} is given back: an earlier one of its key failed", at_once)
        elif held.stage == REFUSED or (held.stage == FAILED and self._is_spent(row)):
            yield step("{} is settled as dead", self._dead(row, "failed"))
        elif held.stage == OUTAGE:
            waits = waits._replace(code="failed")
            yield step("the outage of {} is settled", waits._replace(attempts=row.attempts - 1))
            yield step("the outage of {} is settled, and counts", waits)
        else:
            yield step("{} is settled to be released for a long wait", waits._replace(code="failed"))
            soon = row._replace(begun=False, due=False, code="failed")
            left = (*hand[:place], held._replace(stage=RETRY), *hand[place + 1 :])
            yield step("{} is settled to be retried soon", soon, left)
