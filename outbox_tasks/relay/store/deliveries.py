"""What the delivery of a bundle asks the database for."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from math import isfinite
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Engine

from outbox_tasks.database.connection import Database
from outbox_tasks.model import Bundle, LeasedMessage, Step, Ticket, Verdict, as_time
from outbox_tasks.relay.store import processes
from outbox_tasks.relay.store.traffic import Traffic
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable


class Deliveries(Database):
    """The verbs of a delivery."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.traffic = Traffic(engine, settings)

    def begin(self, bundle: Bundle, *, unhurried: bool = False) -> dict[str, LeasedMessage]:
        """Take a place among the sends, count an attempt of each message, if the bundle is still ours, and fetch them.
        Returns them by id, ordered by number. `unhurried`: this may take longer than a statement usually may."""
        limit, fence = self._limit(unhurried), {"token": bundle.lease, "destination": bundle.destination}
        if bundle.leases:
            self.ask("deliver/gather.sql", limit, **fence, tokens=list(bundle.leases))
        rows = self.ask(
            "deliver/begin.sql",
            limit,
            **fence,
            holder=processes.holder(),
            hold=self.settings.run_lease,
            room=self.traffic.rooms(publishing=True).get(bundle.destination),
            keep=self.settings.soft_time_limit,
        )
        return {row.id: _leased(row) for row in rows}

    def settle(
        self,
        lease: str,
        destination: str,
        verdicts: Sequence[Verdict],
        sender: UUID | None = None,
        *,
        unhurried: bool = False,
    ) -> set[str]:
        """Record what became of messages of a bundle. Returns the ids that were still ours. A message that is to be
        retried gets a lease of its own: the verdict says which."""
        if not verdicts:
            return set()
        limit = self._limit(unhurried)
        fence = {"token": lease, "destination": destination}
        if all(verdict.step is Step.SENT for verdict in verdicts) and self.ask(
            "deliver/sent.sql", limit, **fence, count=len(verdicts)
        ):
            return {verdict.ticket.id for verdict in verdicts}
        said = json.dumps([_said(verdict, self.settings.queue_lease) for verdict in verdicts])
        patience = self.settings.breaker_failures
        return {row.id for row in self.ask("deliver/settle.sql", limit, **fence, patience=patience, said=said)}

    def release(self, lease: str, tickets: Collection[Ticket], wait: float = 0.0) -> set[str]:
        """Give back leases that were not begun; the messages are due in `wait` seconds."""
        return self._released(lease, tickets, wait, shut=False)

    def give_back(self, bundle: Bundle) -> int:
        """Give back the leases that were not begun because the destination gets nothing now; returns how many."""
        return len(self._released(bundle.lease, bundle.tickets, 0.0, shut=True))

    def _released(self, lease: str, tickets: Collection[Ticket], wait: float, *, shut: bool) -> set[str]:
        ids = [ticket.id for ticket in tickets]
        return {row.id for row in self.ask("deliver/release.sql", token=lease, ids=ids, wait=wait, shut=shut)}

    def size_of(self, lease: str, ticket: Ticket) -> int:
        """Bytes of a leased message's payload; 0 if the message is no longer ours."""
        return next((row[0] for row in self.ask("deliver/size.sql", token=lease, id=ticket.id)), 0)

    def sent_in_vain(self, tickets: Collection[Ticket], *, sure: bool) -> None:
        """Note on messages that were sent, but could not be settled, that they may have been delivered twice. `sure`:
        it was not this process that settled them."""
        said = json.dumps([{"id": ticket.id, "attempt": ticket.attempt} for ticket in tickets])
        self.ask("deliver/vain.sql", message=said, holder=processes.holder(), sure=sure)

    def _limit(self, unhurried: bool) -> float | None:
        """Seconds for a statement that did not end in time before: most of what a publish task has."""
        return max(self.settings.statement_timeout, self.settings.soft_time_limit * 2 / 3) if unhurried else None


def _said(verdict: Verdict, queue_lease: float) -> dict[str, Any]:
    """A row of `said`: see deliver/settle.sql."""
    said: dict[str, Any] = {
        "id": verdict.ticket.id,
        "step": verdict.step.value,
        "attempt": verdict.ticket.attempt,
        "wait": verdict.wait,
        "code": storable(verdict.code),
        "error": storable(verdict.error),
    }
    if verdict.step is Step.RETRY:
        verdict.lease = str(uuid4())
        said |= {"token": verdict.lease, "wait": verdict.wait + queue_lease}
    return said


def _leased(row: Any) -> LeasedMessage:
    return LeasedMessage(
        row.id, row.event_type, row.destination, row.key, row.payload, row.content_type,
        row.headers or {}, row.aggregate_type, row.aggregate_id, as_time(row.created_at),
        row.attempts, row.latest, row.age if isfinite(row.age) else 0.0, spared=row.spared,
    )  # fmt: skip
