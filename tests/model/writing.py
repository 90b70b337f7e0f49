"""The application, time, and people."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.base import Base, Step, change
from tests.model.state import Row, Rows


class Writing(Base):
    """Transactions, leases that run out, and what people do."""

    def write(self, rows: Rows) -> Iterator[Step]:
        """Transactions insert, commit and roll back. The numbers (`seq`) are in the order of insertion."""
        new = [n for n, row in enumerate(rows) if row.place == "unwritten"]
        if new:
            some = tuple(new) if self.variant.together else (new[0],)
            after = rows
            for n in some:
                after = change(after, n, Row("open", due=True))
            yield Step("the application inserts {}", some, after)
        opened = [n for n, row in enumerate(rows) if row.place == "open"]
        for some in [tuple(opened)] if self.variant.together and opened else [(n,) for n in opened]:
            committed = rolled_back = rows
            for n in some:
                committed = change(committed, n, rows[n]._replace(place="pending"))
                rolled_back = change(rolled_back, n, Row("rolled back", arrived=rows[n].arrived))
            yield Step("the transaction of {} commits", some, committed)
            yield Step("the transaction of {} is rolled back", some, rolled_back)

    def pass_time(self, rows: Rows) -> Iterator[Step]:
        """A wait ends, or a lease runs out."""
        for n, row in enumerate(rows):
            if row.place in ("open", "pending") and not row.due:
                what = "the lease of {} runs out" if row.leased else "the wait of {} is over"
                yield Step(what, (n,), change(rows, n, row._replace(due=True)), "time")

    def mend(self, rows: Rows) -> Iterator[Step]:
        """What people do: `redrive`, `discard` and `cancel`."""
        for n, row in enumerate(rows):
            if row.place == "dead":
                again = row._replace(place="pending", due=True, leased=False, begun=False, attempts=0)
                yield Step("a person redrives {}", (n,), change(rows, n, again), "person")
            if row.place == "dead" or (row.place == "pending" and self.may_discard(row)):
                gone = self._archived(row, "discarded")
                yield Step("a person discards {}", (n,), change(rows, n, gone), "person")

    def may_discard(self, row: Row) -> bool:
        """`discard` and `outbox_cancel` take a little less: not what a claim has just leased."""
        return not row.begun
