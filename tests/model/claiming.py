"""The claim: what is due is leased, and handed to the broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.model.base import Base, Step, change
from tests.model.state import Code, Giving, Horizon, Row, Rows, Ticket


class Claiming(Base):
    """`relay/claim.py`, and the statements that it runs."""

    def look(self, rows: Rows, horizon: Horizon | None) -> Iterator[Step]:
        """A claim reads what it has to know before it may lease messages with keys: `claim/marks.sql`."""
        if self.variant.keyed and horizon is None and self._are_writing(rows):
            written = sum(row.place != "unwritten" for row in rows)
            yield Step("a claim reads the last number", (), rows, horizon=Horizon(written))
        elif horizon is not None and not horizon.marks:
            floor = min((n for n, row in enumerate(rows) if row.place == "open"), default=len(rows))
            if self.variant.together and floor < len(rows):
                floor = 0
            yield Step(
                "a claim reads the marks of open transactions",
                (),
                rows,
                horizon=Horizon(min(horizon.last, floor), True),
            )

    @staticmethod
    def _are_writing(rows: Rows) -> bool:
        """Once no transaction is open and none is to come, there is nothing to be read before a claim."""
        return any(row.place in ("unwritten", "open") for row in rows)

    def claim(self, rows: Rows, horizon: Horizon | None) -> Iterator[Step]:
        """`claim/take.sql` or `claim/take_keys.sql`, and `claim/lease.sql`: lease what is due, and hand it on."""
        if self.variant.keyed and horizon is None and self._are_writing(rows):
            return
        if horizon is not None:
            if not horizon.marks:
                return
            yield Step("a claim finds nothing to lease", (), rows)
        reach = len(rows) if horizon is None else horizon.last
        for some in self.claimable(rows, reach):
            after = rows
            for n in some:
                after = change(after, n, self.leased(rows[n]))
            task = tuple(Ticket(n, after[n].attempts) for n in some if after[n].place == "pending")
            what = (
                "a claim leases {} in one bundle"
                if len(task) > 1
                else "a claim leases {}"
                if task
                else "a claim makes {} a dead letter"
            )
            yield Step(what, some, after, granted=some, giving=(Giving(task),) if task else ())

    def claimable(self, rows: Rows, reach: int) -> Iterable[tuple[int, ...]]:
        """Which messages one claim may lease as one bundle."""
        if not self.variant.keyed:
            due = [n for n, row in enumerate(rows) if self.is_due(row)]
            yield from ((n,) for n in due)
            if len(due) == 2 and not any(self._is_alone(rows[n]) or self._is_spent(rows[n]) for n in due):
                yield tuple(due)
            return
        waiting = [n for n, row in enumerate(rows) if row.place == "pending" or self._holds_up(row)]
        if not waiting or waiting[0] >= reach or not self.is_due(rows[waiting[0]]):
            return
        yield (waiting[0],)
        follows = len(waiting) == 2 and waiting[1] < reach and self.is_due(rows[waiting[1]])
        if follows and not any(self._is_alone(rows[n]) or self._is_spent(rows[n]) for n in waiting):
            yield tuple(waiting)

    def is_due(self, row: Row) -> bool:
        """It is ready, or what holds it has run out: `claim/expire.sql`, in the same claim, makes that ready."""
        return row.place == "pending" and row.due

    def _holds_up(self, row: Row) -> bool:
        return row.place == "dead" and not self.variant.skip

    def _is_alone(self, row: Row) -> bool:
        return row.begun or row.code == "unsettled"

    def leased(self, row: Row) -> Row:
        """What a claim makes of a row: `claim/expire.sql`, then `claim/lease.sql` or `claim/bury.sql`."""
        code: Code = "unsettled" if row.begun else row.code or ("lease_expired" if row.leased else "")
        if self._is_spent(row):
            return self._dead(row, code or "failed")
        return row._replace(leased=True, due=False, begun=False, code=code)

    def give(self, rows: Rows, giving: Giving) -> Iterator[Step]:
        """A task goes from the claim to the broker, or not."""
        about = tuple(ticket.message for ticket in giving.task)
        if giving.refused:
            after = rows
            for ticket in giving.task:
                after = self._released(after, ticket)
            yield Step("the claim gives the lease of {} back", about, after)
            return
        yield Step("the claim sends the task of {}", about, rows, tasks=(giving.task,))
        yield Step("the claim dies before it sends the task of {}", about, rows, "fault")
        again = (giving._replace(refused=True),)
        yield Step("the broker refuses the task of {}", about, rows, "fault", giving=again)
        what = "the broker takes the task of {}, and its answer gets lost"
        yield Step(what, about, rows, "fault", tasks=(giving.task,), giving=again)
