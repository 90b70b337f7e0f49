"""What a claim asks the database for."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.errors import QueryCanceled
from sqlalchemy import Engine

from outbox_tasks.database import activity, claim, claim_keys, due
from outbox_tasks.database.compiled import Compiled
from outbox_tasks.database.connection import Database
from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.model import Bundle
from outbox_tasks.relay.store import processes
from outbox_tasks.settings import Settings

log = logging.getLogger("outbox_tasks.claim")

MOST_NOTED = 10_000
"""Messages that are marked after a failover: more have hardly been sent in the moment that it undid."""

GRACE = 3600.0
"""Seconds for which due messages wait for an unknown destination: writers may know of it before the relay does."""


class Claimed(NamedTuple):
    """A row that a claim has just leased, or has made a dead letter."""

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
    """It has failed, and a newer message of its key replaces it."""
    cause: str | None = None
    """Why its last lease ended: `unsettled`, it may arrive twice; `lease_expired`, before it was begun (of its writer's
    lease `direct_expired`); of a supervised task `not_started` or `worker_lost`."""
    size: int = 0
    """Bytes of its payload."""
    age: float = 0.0
    """Seconds since it was due for the first time, if the claim has asked for that."""


class Mark(NamedTuple):
    """What a transaction that is still writing has left: see `claim_keys.horizon`."""

    high: int
    key_class: int | None
    floor: int | None


class Claims(Database):
    """The statements of a claim."""

    since = 0
    """A claim leaves rows up to this number alone."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._keys_first = False
        self.late: set[str] = set()
        """The halves of this round's claims that did not end in time: messages without a key, and those with one."""
        self._past: dict[str, str] = {}
        """By destination: the last key that a claim looked at, if it did not get to the end."""
        self._begun_midway: set[str] = set()
        """The destinations of which this round has not yet looked at the first keys."""
        self._from_the_first: set[str] = set()
        """Those of them that the next claim begins with at the first key."""
        self._anything_due = Compiled(partial(due.anything_due, self.tables), itemgetter(0))
        self._next_due: Compiled[float | None] = Compiled(partial(due.next_due, self.tables), itemgetter(0))
        self._claim = Compiled(partial(claim.claim, self.tables), _claimed)
        self._horizon = Compiled(partial(claim_keys.horizon, self.tables), Mark._make)
        self._claim_keys = Compiled(partial(claim_keys.claim_keys, self.tables), _claimed)
        self._no_unroutable = -inf
        """When the last look for messages to unknown destinations found none."""

    def anything_due(self) -> bool:
        """Whether a claim may find something to do: a message that is due, or leased."""
        longest_lease = max(self.settings.queue_lease, self.settings.run_lease)
        return bool(self.run(self._anything_due, {"ahead": longest_lease})[0])

    def until_next_due(self, ahead: float) -> float | None:
        """In how many seconds the next message is due, if that is within `ahead` seconds."""
        return self.run(self._next_due, {"ahead": ahead})[0]

    def claim(self, shares: Mapping[str, int], lease: str, of_keys: Mapping[str, int] | None = None) -> list[Claimed]:
        """Lease up to `shares[destination]` due messages of each destination, in the order of insertion; up to
        `of_keys[destination]` with keys, if that is more.

        Messages with a key and messages without one take turns at being first: neither starves the other. If the
        database can't lease the one half, the other is leased all the same, and the first is not tried again in this
        round.
        """
        found: list[Claimed] = []
        self._keys_first = not self._keys_first
        keyed = {name: max(size, (of_keys or {}).get(name, 0)) for name, size in shares.items()}
        turns = [("without keys", self._claim_unkeyed, shares), ("with keys", self._claim_keyed, keyed)]
        for half, take, sizes in reversed(turns) if self._keys_first else turns:
            taken = Counter(row.destination for row in found)
            left = {name: size - taken[name] for name, size in sizes.items() if size > taken[name]}
            if not left or half in self.late:
                continue
            try:
                found += take(left, lease)
            except DatabaseUnavailable as error:
                self.late.add(half)
                timed_out = isinstance(error.__cause__, QueryCanceled)  # then the server answers, and is asked for more
                if not found and (len(self.late) == len(turns) or not timed_out):
                    self.late.clear()
                    raise
                log.warning("no messages %s are leased for now: %s", half, error)
        return sorted(found, key=lambda row: row.seq)

    def claim_in_bundles(
        self,
        shares: Mapping[str, int],
        lease: str,
        pack: Callable[[Sequence[Claimed]], list[Bundle]],
        of_keys: Mapping[str, int] | None = None,
    ) -> tuple[list[Claimed], list[Bundle]]:
        """Claim, and `pack` what was claimed into bundles. See `claim`."""
        rows = self.claim(shares, lease, of_keys)
        return rows, pack(rows)

    def _claim_unkeyed(self, shares: Mapping[str, int], lease: str) -> list[Claimed]:
        return self.run(self._claim, self._wanted(shares, lease))

    def _claim_keyed(self, shares: Mapping[str, int], lease: str) -> list[Claimed]:
        marks = self.run(self._horizon, {"asked": json.dumps([{"destination": name} for name in shares])})
        if not marks:
            self._past.clear()
            self._begin_round()
            return []
        heed = self.settings.await_writers
        floors = [{"class": mark.key_class, "floor": mark.floor} for mark in marks if heed and mark.floor is not None]
        parameters = {**self._wanted(shares, lease), "high": marks[0].high, "marks": json.dumps(floors)}
        rows = self.run(self._claim_keys, parameters)
        past = {row.destination: str(row.key) for row in rows if not row.id}
        self._past = {name: key for name, key in self._past.items() if name not in shares} | past
        self._from_the_first = (self._begun_midway & shares.keys()) - past.keys()
        self._begun_midway -= self._from_the_first
        return [row for row in rows if row.id]

    def new_round(self) -> None:
        """From now on, each key is looked at once before a destination is no longer `unfinished`."""
        self.late.clear()
        self._begin_round()

    def _begin_round(self) -> None:
        self._begun_midway, self._from_the_first = set(self._past), set()

    @property
    def unfinished(self) -> Set[str]:
        """The destinations of which the claims of this round have not looked at all keys."""
        return self._past.keys() | self._from_the_first

    def _wanted(self, shares: Mapping[str, int], lease: str) -> dict[str, Any]:
        """The parameters of a claim: see `claim.SHARE`."""
        configured = self.settings.destinations
        share = [
            {
                "destination": name,
                "size": size,
                "ceiling": configured[name].max_attempts,
                "oldest": configured[name].max_age,
                "largest": configured[name].largest,
                "longest": self.settings.longest_run_of(name),
                "blocks": self.settings.dead_blocks(name),
                "past": self._past.get(name),
                "beyond": self.since,
            }
            for name, size in shares.items()
        ]
        hold = self.settings.queue_lease
        return {"share": json.dumps(share), "token": UUID(lease), "holder": processes.holder(), "hold": hold}

    def bury_unroutable(self, pause: float = 0.0) -> list[Claimed]:
        """Make dead letters of messages that have been due for `GRACE` seconds for destinations that are not
        configured: some of them at each call. If there was none, it does not look again for `pause` seconds."""
        now = time.monotonic()
        if now - self._no_unroutable < pause:
            return []
        parameters = {"known": list(self.settings.destinations), "grace": GRACE}
        rows = [Claimed(*row) for row in self.rows(claim.bury_unroutable(self.tables), parameters)]
        if not rows:
            self._no_unroutable = now
        return rows

    def note_timeline(self) -> int | None:
        """If the database is on another timeline than before, note on messages that are due that they may have been
        delivered; returns on how many. None: it is not."""
        changed = self.rows(activity.on_timeline(self.tables), {})
        if not changed or changed[0].before is None:
            return None
        return self.do(claim.note_timeline(self.tables), {"most": MOST_NOTED})

    def recall(self, gone: str | None = None, *, crashed: bool = False) -> int:
        """End leases that nobody will use; returns how many: those of the process `gone`, or else those of all messages
        that are not begun. `crashed`: only leases from before the last crash of the database server."""
        parameters = {"gone": gone, "crashed": crashed, "hold": self.settings.queue_lease}
        return self.do(claim.recall(self.tables), parameters)


def _claimed(row: Sequence[Any]) -> Claimed:
    return Claimed(*row)
