"""What the delivery of a bundle asks the database for."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Engine, Executable

from outbox_tasks.database import begin, settle
from outbox_tasks.database.compiled import Compiled
from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import Tables
from outbox_tasks.model import Bundle, LeasedMessage, Step, Ticket, Verdict, as_time
from outbox_tasks.relay.store import processes
from outbox_tasks.relay.store.traffic import Traffic
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable

T = TypeVar("T")

DONE = (Step.SENT, Step.DISCARDED)
HANDED = (Step.HANDED,)
FAILED = (Step.RETRY, Step.RELEASE, Step.OUTAGE, Step.DEAD, Step.BEHIND)


class Deliveries(Database):
    """The statements of a delivery."""

    settles_at_once = False
    """Whether all outcomes of a bundle are settled by one statement."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.traffic = Traffic(engine, settings)
        self._begin = _both(partial(begin.begin, self.tables), _leased, binary=True)
        self._settle_done = settled(self.tables, archive=settings.archive == "move")
        self._settle_handed = Compiled(partial(settle.settle_handed, self.tables), itemgetter(0))
        self._settle_failed = Compiled(partial(settle.settle_failed, self.tables), itemgetter(0))

    def begin(self, bundle: Bundle, *, unhurried: bool = False) -> dict[str, LeasedMessage]:
        """Take a slot, count an attempt of each message that is still ours, and fetch it. Returns them by id, in the
        bundle's order. `unhurried`: this may take longer than a statement usually may."""
        named = _named(bundle.tickets)
        parameters = {
            **named,
            "token": UUID(bundle.lease),
            "target": bundle.destination,
            "sender": bundle.sender,
            "room": self.traffic.rooms(publishing=True).get(bundle.destination),
            "holder": processes.holder(),
            "hold": self.settings.run_lease,
            # Longer than any send may take; the row's lease allows for more than that.
            "keep": self.settings.soft_time_limit,
        }
        found = self.run(self._begin["ids" in named], parameters, self._limit(unhurried))
        begun = {message.id: message for message in found}
        return {ticket.id: begun[ticket.id] for ticket in bundle.tickets if ticket.id in begun}

    def size_of(self, lease: str, ticket: Ticket) -> int:
        """Bytes of a leased message's payload; 0 if the message is no longer ours."""
        return next((row[0] for row in self.rows(begin.size_of(self.tables), _fence(lease, [ticket]))), 0)

    def release(self, lease: str, tickets: Collection[Ticket], wait: float = 0.0) -> set[str]:
        """Give back leases that were not begun; the messages are due in `wait` seconds."""
        rows = self.rows(begin.release(self.tables), {**_fence(lease, tickets), "hold": wait})
        return {row[0] for row in rows}

    def give_back(self, bundle: Bundle) -> int:
        """Give back the leases that were not begun because the destination gets nothing now; returns how many."""
        parameters = {**_fence(bundle.lease, bundle.tickets), "target": bundle.destination}
        return len(self.rows(begin.give_back(self.tables), parameters))

    def settle(
        self,
        lease: str,
        destination: str,
        verdicts: Sequence[Verdict],
        sender: UUID | None = None,
        *,
        unhurried: bool = False,
    ) -> set[str]:
        """Record what became of begun messages, and free the slot of `sender`. Returns the ids that were still ours.
        `unhurried`: see `begin`."""
        fence = {"token": UUID(lease), "target": destination, "sender": sender}
        done = [verdict for verdict in verdicts if verdict.step in DONE]
        handed = [_handed(verdict) for verdict in verdicts if verdict.step in HANDED]
        failed = [_failed(verdict, self.settings.queue_lease) for verdict in verdicts if verdict.step in FAILED]
        settled: set[str] = set()
        if done:
            only_sent = all(verdict.step is Step.SENT for verdict in done)
            named = (
                _named([verdict.ticket for verdict in done])
                if only_sent
                else {"ticket": json.dumps([*map(_done, done)])}
            )
            settled.update(self.run(self._settle_done["ids" in named], {**named, **fence}, self._limit(unhurried)))
        if handed:
            parameters = {"ticket": json.dumps(handed), **fence}
            settled.update(self.run(self._settle_handed, parameters, self._limit(unhurried)))
        if failed:
            parameters = {"ticket": json.dumps(failed), "patience": self.settings.breaker_failures, **fence}
            settled.update(self.run(self._settle_failed, parameters, self._limit(unhurried)))
        return settled

    def sent_in_vain(self, tickets: Collection[Ticket], *, sure: bool) -> None:
        """Note on messages that were sent, but could not be settled, that they may have been delivered twice. `sure`:
        it was not this process that settled them."""
        statement = settle.sent_in_vain(self.tables, archive=self.settings.archive == "move")
        self.do(statement, {"ticket": _compared(tickets), "holder": processes.holder(), "sure": sure})

    def _limit(self, unhurried: bool) -> float | None:
        """Seconds for a statement that did not end in time before: most of what a publish task has."""
        return max(self.settings.statement_timeout, self.settings.soft_time_limit * 2 / 3) if unhurried else None


def settled(tables: Tables, *, archive: bool) -> dict[bool, Compiled[str]]:
    """`settle_done`, which returns the ids that were still ours, for messages that are alike and for others."""
    return _both(partial(settle.settle_done, tables, archive=archive), itemgetter(0))


def _both(
    build: Callable[..., Executable], make: Callable[[Sequence[Any]], T], **options: Any
) -> dict[bool, Compiled[T]]:
    return {alike: Compiled(partial(build, alike=alike), make, **options) for alike in (True, False)}


def _named(tickets: Collection[Ticket]) -> dict[str, Any]:
    """The parameters that name some messages and their attempts: see `attempt_of`."""
    attempts = {ticket.attempt for ticket in tickets}
    if len(attempts) != 1:
        return {"ticket": _compared(tickets)}
    ids = ",".join([ticket.id for ticket in tickets])
    return {"ids": f"{{{ids}}}", "attempt": attempts.pop()}


def _compared(tickets: Collection[Ticket]) -> str:
    return json.dumps([{"id": ticket.id, "attempt": ticket.attempt} for ticket in tickets])


def _fence(lease: str, tickets: Collection[Ticket]) -> dict[str, Any]:
    return {"ticket": _compared(tickets), "token": UUID(lease)}


def _leased(row: Sequence[Any]) -> LeasedMessage:
    """`begin` returns the fields of a `LeasedMessage`, in their order: headers are the 7th, created_at is the 10th."""
    fields = list(row)
    fields[6] = {} if fields[6] is None else _parsed(fields[6])
    fields[9] = as_time(fields[9])
    return LeasedMessage(*fields)


def _parsed(headers: str) -> Any:
    """Headers that can't be parsed stay a text. A text is no headers, so the publisher refuses the message."""
    try:
        return json.loads(headers)
    except (ValueError, RecursionError):
        return headers


def _done(verdict: Verdict) -> dict[str, Any]:
    """What `settle_done` writes for a verdict."""
    row: dict[str, Any] = {"id": verdict.ticket.id, "attempt": verdict.ticket.attempt}
    if verdict.step is Step.DISCARDED:
        row |= {"state": "discarded", "code": storable(verdict.code), "error": storable(verdict.error)}
    return row


def _handed(verdict: Verdict) -> dict[str, Any]:
    """What `settle_handed` writes for a verdict."""
    return {"id": verdict.ticket.id, "attempt": verdict.ticket.attempt, "within": verdict.wait}


def _failed(verdict: Verdict, queue_lease: float) -> dict[str, Any]:
    """What `settle_failed` writes for a verdict. A short retry keeps its lease for the wait and the queue."""
    keep = verdict.step is Step.RETRY
    return {
        "id": verdict.ticket.id,
        "attempt": verdict.ticket.attempt,
        "hold": verdict.wait + queue_lease if keep else verdict.wait,
        "keep": keep,
        "dead": verdict.step is Step.DEAD,
        "outage": verdict.step is Step.OUTAGE,
        "behind": verdict.step is Step.BEHIND,
        "code": storable(verdict.code),
        "error": storable(verdict.error),
    }
