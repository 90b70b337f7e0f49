"""The outbox tables, as the hops use them: one method for each statement of `database`, each its own short transaction.

A method that changes rows under a lease returns what it changed. A row that is missing from the answer belongs to
somebody else by now. That is a result to count, not an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import Engine

from outbox_tasks.database import begin, claim, claim_keys, schema, settle
from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import VERSION, tables, where
from outbox_tasks.errors import DatabaseUnavailable, SchemaMissing, SchemaTooNew, SchemaTooOld
from outbox_tasks.model import Bundle, LeasedMessage, Step, Ticket, Verdict
from outbox_tasks.relay.traffic import Traffic
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable


class Claimed(NamedTuple):
    """A row that a claim has just leased, or found to have no attempts left, or to be too old."""

    seq: int
    id: str
    destination: str
    event_type: str
    attempts: int
    status: str
    alone: bool
    key: str | None = None
    priority: int = 0
    code: str | None = None
    """Of its last error, or why it is dead."""
    error: str | None = None
    superseded: bool = False
    """It has failed, and there is a newer one, which is all that matters."""
    cause: str | None = None
    """Why its last lease ended: `unsettled`, it may arrive twice; or `lease_expired`, before it was begun."""
    size: int = 0
    """Bytes of its payload."""


FAILED = (Step.RETRY, Step.RELEASE, Step.OUTAGE, Step.DEAD, Step.BEHIND)


GRACE = 3600.0
"""Seconds for which due messages wait for an unknown destination: writers may know of it before the relay does."""


def holder(pid: int | None = None) -> str:
    """Who we are, or another process of ours, on the rows that it holds: host/space:pid. Whoever shares host and space
    can see our process."""
    return f"{socket.gethostname()}/{_space()}:{pid or os.getpid()}"


@cache
def _space() -> str:
    """In which process numbers mean the same: containers may share a hostname, and each has numbers of its own."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        seen = booted + str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        seen = str(uuid4())  # of this process alone, and of those that it forks
    return hashlib.sha256(seen.encode()).hexdigest()[:6]


class Store(Database):
    """The outbox tables of one database."""

    since = 0
    """The number of the last row that is not looked at."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.traffic = Traffic(self)
        self._keys_first = False
        self._past: dict[str, str] = {}
        """How far a claim has looked through the keys of a destination, where it did not get to the end."""
        self.tables = t = tables(settings.database_schema)
        self._claim = claim.claim(t)
        self._horizon = claim_keys.horizon(t)
        self._claim_keys = claim_keys.claim_keys(t)
        self._recall = claim.recall(t)
        self._bury_unroutable = claim.bury_unroutable(t)
        self._begin = begin.begin(t)
        self._settle_done = settle.settle_done(t, archive=settings.archive == "move")
        self._settle_failed = settle.settle_failed(t)
        self._sent_in_vain = settle.sent_in_vain(t, archive=settings.archive == "move")
        self._release = begin.release(t)

    def close(self) -> None:
        """Say that this process publishes no more, and close the connections."""
        with suppress(DatabaseUnavailable, SchemaMissing):
            self.traffic.leave(holder())
        super().close()

    def check_version(self) -> None:
        """Raises `SchemaMissing`, `SchemaTooOld` or `SchemaTooNew` unless the tables are of this release."""
        found = self.rows(schema.version(self.tables), {})[0][0]
        if found is None:
            raise SchemaMissing(where=where(self.settings.database_schema))
        if found < VERSION:
            raise SchemaTooOld(found=found, needed=VERSION)
        if found > VERSION:
            raise SchemaTooNew(found=found, needed=VERSION)

    def claim(self, shares: Mapping[str, int], lease: str) -> list[Claimed]:
        """Lease up to `shares[destination]` due messages of each destination, in the order of insertion.

        Those with a key and those without one take turns at being first: neither starves the other.
        """
        found: list[Claimed] = []
        self._keys_first = not self._keys_first
        turns = [self._lease_unkeyed, self._lease_keyed]
        for take in reversed(turns) if self._keys_first else turns:
            taken = Counter(row.destination for row in found)
            left = {name: size - taken[name] for name, size in shares.items() if size > taken[name]}
            found += take(left, lease) if left else []
        return sorted(found, key=lambda row: row.seq)

    def discard(self, lease: str, rows: Collection[Claimed]) -> None:
        """Archive leased messages that nobody wants any more."""
        for destination in {row.destination for row in rows}:
            tickets = [Ticket(row.id, row.attempts, row.event_type) for row in rows if row.destination == destination]
            told = ("superseded", "it had failed, and there is a newer message of its key")
            verdicts = [Verdict(ticket, Step.DISCARDED, 0.0, *told) for ticket in tickets]
            self.settle(lease, destination, verdicts)

    @property
    def unfinished(self) -> Set[str]:
        """The destinations of which the last claim did not look through all keys."""
        return self._past.keys()

    def _lease_unkeyed(self, shares: Mapping[str, int], lease: str) -> list[Claimed]:
        return [Claimed(*row) for row in self.rows(self._claim, self._asked(shares, lease))]

    def _lease_keyed(self, shares: Mapping[str, int], lease: str) -> list[Claimed]:
        asked = json.dumps([{"destination": name} for name in shares])
        marks = self.rows(self._horizon, {"asked": asked})
        if not marks:
            self._past.clear()
            return []
        heed = self.settings.await_writers
        floors = [{"class": row[1], "floor": row.floor} for row in marks if heed and row.floor is not None]
        parameters = {**self._asked(shares, lease), "high": marks[0].high, "marks": json.dumps(floors)}
        rows = self.rows(self._claim_keys, parameters)
        past = {row.destination: row.key for row in rows if row.id is None}
        self._past = {name: key for name, key in self._past.items() if name not in shares} | past
        return [Claimed(*row) for row in rows if row.id is not None]

    def _asked(self, shares: Mapping[str, int], lease: str) -> dict[str, Any]:
        """The parameters of a claim: see `claim.SHARE`."""
        configured = self.settings.destinations
        share = [
            {
                "destination": name,
                "size": size,
                "ceiling": configured[name].max_attempts,
                "oldest": configured[name].max_age,
                "longest": self.settings.bundle_size_of(name),
                "blocks": configured[name].on_dead == "block",
                "past": self._past.get(name),
                "beyond": self.since,
            }
            for name, size in shares.items()
        ]
        hold = self.settings.queue_lease
        return {"share": json.dumps(share), "token": UUID(lease), "holder": holder(), "hold": hold}

    def recall(self, gone: str | None = None, *, crashed: bool = False) -> int:
        """Let leases run out now that nobody will use; returns how many. All that a process has which is `gone`; or
        those of what is not begun: all, or those that were granted before the server `crashed`."""
        parameters = {"gone": gone, "crashed": crashed, "hold": self.settings.queue_lease}
        return self.do(self._recall, parameters)

    def bury_unroutable(self) -> list[Claimed]:
        """Make dead letters of what has been due for `GRACE` seconds for destinations that are not configured; a number
        at a time."""
        rows = self.rows(self._bury_unroutable, {"known": list(self.settings.destinations), "grace": GRACE})
        return [Claimed(*row) for row in rows]

    def begin(self, bundle: Bundle, *, unhurried: bool = False) -> dict[str, LeasedMessage]:
        """Count an attempt of each message that is still ours and fetch it, by id; the bundle gets a slot.
        `unhurried`: it may take longer than a statement usually may."""
        parameters = {
            **_fence(bundle.lease, bundle.tickets),
            "target": bundle.destination,
            "sender": bundle.sender,
            "room": self.traffic.rooms(holder()).get(bundle.destination),
            "holder": holder(),
            "hold": self.settings.run_lease,
            # Longer than any send may take; the row's lease allows for more than that.
            "keep": self.settings.soft_time_limit,
        }
        limit = self._longest if unhurried else None
        return {row[0]: _leased(*row) for row in self.rows(self._begin, parameters, limit)}

    @property
    def _longest(self) -> float:
        """Seconds for a statement that did not end in time: most of what a publish task has."""
        return max(self.settings.statement_timeout, self.settings.soft_time_limit * 2 / 3)

    def crowded(self, bundle: Bundle) -> bool | None:
        """See `Traffic.crowded`."""
        return self.traffic.crowded(bundle, holder())

    def give_back(self, bundle: Bundle) -> int:
        """Release what was not begun because its destination is left alone; returns how many."""
        return self.traffic.give_back(bundle, _fence(bundle.lease, bundle.tickets))

    def settle(
        self,
        lease: str,
        destination: str,
        verdicts: Sequence[Verdict],
        sender: UUID | None = None,
        *,
        unhurried: bool = False,
    ) -> set[str]:
        """Record what became of begun messages. Returns the ids that were still ours. The slot of `sender` is free.
        `unhurried`: see `begin`."""
        limit = self._longest if unhurried else None
        done = [v for v in verdicts if v.step in (Step.SENT, Step.DISCARDED)]
        failed = [v for v in verdicts if v.step in FAILED]
        fence = {"token": UUID(lease), "target": destination, "sender": sender}
        settled: Sequence[Any] = []
        if done:
            parameters: dict[str, Any] = {"ticket": json.dumps([_done(v) for v in done]), **fence}
            settled = self.rows(self._settle_done, parameters, limit)
        if failed:
            parameters = {
                "ticket": json.dumps([_failure(v, self.settings.queue_lease) for v in failed]),
                "patience": self.settings.breaker_failures,
                **fence,
            }
            settled = [*settled, *self.rows(self._settle_failed, parameters, limit)]
        return {row[0] for row in settled}

    def sent_in_vain(self, tickets: Collection[Ticket]) -> None:
        """Note on begun messages that could not be settled that they may have been delivered twice."""
        rows = [{"id": ticket.id, "attempt": ticket.attempt} for ticket in tickets]
        self.do(self._sent_in_vain, {"ticket": json.dumps(rows), "holder": holder()})

    def release(self, lease: str, tickets: Collection[Ticket], wait: float = 0.0) -> set[str]:
        """Give back leases that were not begun; the messages are due in `wait` seconds."""
        rows = self.rows(self._release, {**_fence(lease, tickets), "hold": wait})
        return {row[0] for row in rows}


def _leased(
    id: str,
    event_type: str,
    destination: str,
    key: str | None,
    payload: bytes,
    content_type: str,
    headers: str | None,
    aggregate_type: str | None,
    aggregate_id: str | None,
    created_at: float,
    attempts: int,
    latest: bool,
    age: float,
) -> LeasedMessage:
    return LeasedMessage(
        id,
        event_type,
        destination,
        key,
        payload,
        content_type,
        {} if headers is None else _parsed(headers),
        aggregate_type,
        aggregate_id,
        _time(created_at),
        attempts,
        latest=latest,
        age=age,
    )


def _parsed(headers: str) -> Any:
    """What can't be parsed stays a text, which is no headers: the message will be refused as it is sent."""
    try:
        return json.loads(headers)
    except (ValueError, RecursionError):
        return headers


def _time(seconds: float) -> datetime:
    """PostgreSQL has times that Python has not: these become the last there is."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def _fence(lease: str, tickets: Collection[Ticket]) -> dict[str, Any]:
    rows = [{"id": ticket.id, "attempt": ticket.attempt} for ticket in tickets]
    return {"ticket": json.dumps(rows), "token": UUID(lease)}


def _done(verdict: Verdict) -> dict[str, Any]:
    """What `settle_done` writes for a verdict."""
    row: dict[str, Any] = {"id": verdict.ticket.id, "attempt": verdict.ticket.attempt}
    if verdict.step is Step.DISCARDED:
        row |= {"state": "discarded", "code": storable(verdict.code), "error": storable(verdict.error)}
    return row


def _failure(verdict: Verdict, queue_lease: float) -> dict[str, Any]:
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
