"""What a claim asks the database for, the slots of drains, and the housekeeping, which claims do."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from sqlalchemy import Engine

from outbox_tasks.database.connection import Database
from outbox_tasks.model import Single, Slot
from outbox_tasks.relay.store import processes
from outbox_tasks.relay.store.lanes import FREED_LATELY, FROM_FRONT_SECONDS, LONG_AGO, Progress, Snapshot
from outbox_tasks.satellites import satellites
from outbox_tasks.settings import Settings

HOUSEKEEPING_SECONDS = 0.25
"""Leases that have run out and waits that are over are looked for at most so often."""

LEASES_AT_ONCE, MESSAGES_AT_ONCE = 1000, 10_000
"""Leases, and messages, that one statement of the housekeeping moves."""

BURIED_AT_ONCE, DESTINATIONS_AT_ONCE = 1000, 1000
"""Messages to unknown destinations that become dead letters at once, and destinations that one look finds that this
process has not served lately."""

UNKNOWN_GRACE_SECONDS = 3600.0
"""For so long due messages wait for an unknown destination: writers may know of it before the relay does."""


class Due(NamedTuple):
    """A destination of which something is due: see claim/due.sql."""

    destination: str
    known: bool
    keyless: int
    alone: int
    new: int
    held: int
    drains: int
    shut: bool
    probe: bool

    @property
    def total(self) -> int:
        """How many messages."""
        return self.keyless + self.alone + self.new + self.held


class Share(NamedTuple):
    """How many messages of each kind a claim takes singly of a destination."""

    keyless: int
    held: int
    new: int
    token: str | None = None
    """The lease of a probe: then one message is taken, of one kind."""


class Buried(NamedTuple):
    """A message to an unknown destination that is a dead letter now."""

    id: str
    event_type: str
    destination: str
    key: str | None
    error: str


class Claims(Database):
    """The verbs of a claim."""

    def __init__(self, engine: Engine, settings: Settings, progress: Progress) -> None:
        super().__init__(engine, settings)
        self._progress = progress
        self._others_past = self._buried_past = ""
        self._house_kept_at = self._all_leases_read_at = -inf
        self._no_lease_ends_before = LONG_AGO
        self.expired: Counter[tuple[str, str]] = Counter()
        """How many messages were taken back since the last claim, by destination and cause."""

    def keep_house(self, *, at_once: bool = False) -> bool:
        """Now and then: take back the leases and runs that have run out, and make the messages due whose wait is over.
        Seldom: free the keys of destinations whose dead letters no longer hold up their keys. Returns whether something
        is due by that.

        An old snapshot keeps the rows of all leases that are gone. So only leases that ended lately are read, and all
        of them once in `FROM_FRONT_SECONDS`. `at_once`: do all of it, whenever it was done last."""
        now = time.monotonic()
        if now < self._house_kept_at + HOUSEKEEPING_SECONDS and not at_once:
            return False
        self._house_kept_at = now
        since = self._no_lease_ends_before
        if at_once or now > self._all_leases_read_at + FROM_FRONT_SECONDS:
            since, self._all_leases_read_at = LONG_AGO, now
            names = self.settings.destinations
            self.ask("claim/unblock.sql", destinations=[name for name in names if not self.settings.dead_blocks(name)])
        *rows, looked = self.ask("claim/expire.sql", most=LEASES_AT_ONCE, messages=MESSAGES_AT_ONCE, since=since)
        if looked.leases < LEASES_AT_ONCE and len(rows) < MESSAGES_AT_ONCE:
            self._no_lease_ends_before = looked.at - FREED_LATELY
        for each in satellites().values():
            rows += each.expire(self, MESSAGES_AT_ONCE)
        self.expired.update((row.destination, row.cause) for row in rows)
        woken = self.ask("claim/wake.sql", most=MESSAGES_AT_ONCE)[0].count
        return bool(looked.leases or rows or woken)

    def due(self, most: int) -> list[Due]:
        """The configured destinations of which something is due, counted up to `most`."""
        lanes, places = self._progress.lanes, self._progress.places
        known = [place | {"span": lanes.spans(place["destination"])} for place in places.known()]
        rows = self.ask(
            "claim/due.sql",
            known=json.dumps(known),
            most=most,
            others=DESTINATIONS_AT_ONCE,
            past=self._others_past,
        )
        others = [row.destination for row in rows if not row.known]
        self._others_past = max(others) if len(others) >= DESTINATIONS_AT_ONCE else ""
        return [Due(*row) for row in rows if row.destination in self.settings.destinations]

    def take_singly(self, shares: Mapping[str, Share]) -> list[Single]:
        """Lease messages of these destinations, each for itself."""
        lease = {"holder": processes.holder(), "hold": self.settings.queue_lease}
        with self._progress.or_anew():
            keyless = {name: share for name, share in shares.items() if share.keyless}
            singles = self._take_keyless(keyless, lease) if keyless else []
            if keyed := {name: share for name, share in shares.items() if share.held or share.new}:
                singles += self._take_keys(keyed, lease)
        return singles

    def _take_keyless(self, shares: Mapping[str, Share], lease: dict[str, Any]) -> list[Single]:
        wanted = [
            {
                "destination": name,
                "most": share.keyless,
                "token": share.token,
                "span": self._progress.lanes.spans(name),
            }
            for name, share in shares.items()
        ]
        *rows, looked = self.ask("claim/take_keyless_singly.sql", **lease, share=json.dumps(wanted))
        taken = [(row.destination, row.priority, int(row.at), row.seq) for row in rows if row.at is not None]
        count = Counter(row.destination for row in rows)
        ends = {name for name, share in shares.items() if count[name] < share.keyless}
        names = [name for name, share in shares.items() if share.token is None]  # a probe takes one from the middle
        self._progress.lanes.note(names, taken, Snapshot.parsed(looked.at), life=looked.id, ends=ends)
        return [_single(row) for row in rows]

    def _take_keys(self, shares: Mapping[str, Share], lease: dict[str, Any]) -> list[Single]:
        places = {name: self._progress.places.of(name) for name in shares}
        wanted = [
            {
                "destination": name, "held": share.held, "new": share.new, "token": share.token,
                "start": places[name].start, "life": places[name].life,
                "free_since": places[name].free_since.isoformat(), "blocks": self.settings.dead_blocks(name),
            }
            for name, share in shares.items()
        ]  # fmt: skip
        rows = self.ask("claim/take_keys_singly.sql", **lease, share=json.dumps(wanted))
        for row in rows:  # only rows without a message say how far it looked
            place = places[row.destination]
            if row.next_start is not None:
                place.go_on(row.next_start, row.life)
            if row.all_before is not None:
                place.free_since = max(place.free_since, row.all_before - FREED_LATELY)
        return [_single(row) for row in rows if row.seq is not None]

    def reserve_slots(self, wanted: Mapping[str, tuple[int, int]], holder: str | None = None) -> list[Slot]:
        """Reserve slots for drains. `wanted`: for each destination how many slots there are, and how many more are to
        be reserved. `holder`: of drains that begin now; None: their tasks are still to be sent."""
        share = [{"destination": name, "slots": slots, "wanted": more} for name, (slots, more) in wanted.items()]
        hold = self.settings.drain_lease
        rows = self.ask("claim/reserve_slots.sql", share=json.dumps(share), holder=holder, hold=hold)
        return [Slot(*row) for row in rows]

    def take_slot(self, destination: str, slots: int) -> Slot | None:
        """A slot for a drain that begins now; None: all are taken."""
        return next(iter(self.reserve_slots({destination: (slots, 1)}, processes.holder())), None)

    def begin_drain(self, slot: Slot) -> Slot | None:
        """Let the drain of a slot begin. Returns the slot with its number; None: another drain has it by now."""
        hold = self.settings.drain_lease
        begun = self.ask("claim/begin_drain.sql", **slot._asdict(), holder=processes.holder(), hold=hold)
        return slot._replace(number=int(begun[0].slot)) if begun else None

    def end_drain(self, slot: Slot) -> None:
        """Free the slot of a drain."""
        self.ask("claim/end_drain.sql", **slot._asdict())

    def bury(self) -> list[Buried]:
        """Make dead letters of messages that have been due for `UNKNOWN_GRACE_SECONDS` for destinations that are not
        configured, of up to `BURIED_AT_ONCE`."""
        *rows, end = self.ask(
            "claim/bury.sql",
            known=list(self.settings.destinations),
            grace=UNKNOWN_GRACE_SECONDS,
            past=self._buried_past,
            look=DESTINATIONS_AT_ONCE,
            most=BURIED_AT_ONCE,
        )
        if len(rows) < BURIED_AT_ONCE:
            self._buried_past = end.destination
        return [Buried(row.id, row.event_type, row.destination, row.key, row.error) for row in rows]

    def note_lost_commits(self) -> int | None:
        """If the database has lost its last commits, because it crashed or another server took over, note on messages
        that are due that they may have been delivered. Returns how many got a note, of at most `MESSAGES_AT_ONCE`:
        more have hardly been sent in that moment. None: the database has lost nothing."""
        changed = self.ask("report/timeline.sql")
        if not changed or changed[0].code is None:
            return None
        [row] = changed
        return int(self.ask("claim/note_lost_commits.sql", code=row.code, error=row.error, most=MESSAGES_AT_ONCE)[0][0])

    def recall(self, gone: str | None = None) -> int:
        """End leases that nobody will use, and free slots of drains: those of the process `gone`, which has ended; or
        else those of all singles and drains that have not begun. Returns how many messages the leases had."""
        return int(self.ask("claim/recall.sql", gone=gone, hold=self.settings.queue_lease)[0][0])

    def hold_back(self, destinations: list[str]) -> None:
        """Give back the singles of these destinations that wait in the broker's queue for their first send."""
        self.ask("claim/hold_back.sql", destinations=destinations)

    def holders(self, place: str) -> list[str]:
        """The processes that have a lease or a slot, and whose names begin with `place`."""
        return [row.holder for row in self.ask("claim/holders.sql", place=place)]


def _single(row: Any) -> Single:
    return Single(row.id, row.event_type, row.destination, row.attempts, row.token)
