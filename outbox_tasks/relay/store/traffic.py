"""What a claim and a delivery ask about destinations: which ones get nothing now, and how much of the cluster each may
take."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import Engine

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import OutboxError
from outbox_tasks.model import Bundle
from outbox_tasks.relay.pace import Pace
from outbox_tasks.relay.store import processes
from outbox_tasks.settings import SLOW, Settings
from outbox_tasks.text import storable

SEEN = 30.0
"""A process counts as one that sends for so many seconds after it last noted that."""

COUNT_EVERY, COUNTED_FOR = 2.0, 15.0
"""Seconds after which the processes that send are counted again: when no message waits for that, and at the latest.
A process that sends is seen at least that often; see `SEEN`."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many messages of a destination a claim may lease, and why no more."""

    size: int
    probe: bool = False
    """The breaker of the destination is open, and this one message tries whether it answers again."""
    metered: bool = False
    """The destination has a rate limit: the claim puts back what it does not use."""
    cut: bool = False
    """The free slots of the destination can't send as many as were wanted."""

    @property
    def bounded(self) -> bool:
        """Whether a claim that fills this share can't tell if more is due."""
        return self.probe or self.metered or self.cut


class Admitted(NamedTuple):
    """A destination that can't be claimed for as usual: see claim/admit.sql."""

    name: str
    shut: bool
    tried: bool
    slow: int


class Traffic(Database):
    """The statements about destinations."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.threads = 1
        """How many tasks of this process send at once. Each counts as a process."""
        self.pace = Pace(settings)
        self.flooding: set[str] = set()
        """The destinations that had more due than the last claim of this process took."""
        self._rooms: dict[bool, tuple[float, dict[str, int | None]]] = {}

    def rooms(self, *, publishing: bool = False) -> Mapping[str, int | None]:
        """How many sends to each destination may run at once; None: any number. `publishing`: this process sends too,
        and says so.

        A destination without a `concurrency` of its own leaves some of the processes to the others.
        """
        self._count(COUNTED_FOR, publishing)
        return self._rooms[publishing][1]

    def count_again(self, *, publishing: bool = False) -> None:
        """Count the processes that send, from time to time. Call it when no message waits for that."""
        with suppress(OutboxError):  # the next one who needs the count finds out
            self._count(COUNT_EVERY, publishing)

    def _count(self, old: float, publishing: bool) -> None:
        now = time.monotonic()
        if publishing in self._rooms and now < self._rooms[publishing][0] + old:
            return
        count = self._count_publishers(publishing)
        rooms = {name: self.settings.most_sends(name, count) for name in self.settings.destinations}
        self._rooms[publishing] = now, rooms

    def _count_publishers(self, publishing: bool) -> int:
        if not publishing:
            return int(self.ask("traffic/publishers.sql", recent=SEEN)[0].count)
        others = self.ask("traffic/seen.sql", holders=processes.names(self.threads), recent=SEEN)[0].count
        return int(others) + self.threads

    def admit(self, wanted: Mapping[str, int], lease: str) -> dict[str, Share]:
        """How many of the messages that are wanted of each destination may be leased now. A probe is granted to this
        lease only."""
        settings, rooms = self.settings, self.rooms()
        shares = {name: self._most(name, size) for name, size in wanted.items()}
        asked = [
            {"destination": name, "patience": None if rooms[name] is None else settings.slow_after(name)}
            for name in wanted
        ]
        for row in self._admitted(asked, lease):
            if row.shut:
                shares[row.name] = Share(int(row.tried), probe=row.tried)
            elif (room := rooms[row.name]) is not None:
                size = max(0, room - row.slow) * settings.bundle_size_of(row.name)
                shares[row.name] = Share(min(size, shares[row.name].size), cut=True)
        return self._meter({name: share for name, share in shares.items() if share.size})

    def _admitted(self, asked: list[dict[str, Any]], lease: str) -> list[Admitted]:
        rows = self.ask(
            "claim/admit.sql",
            asked=json.dumps(asked),
            token=lease,
            hold=self.settings.queue_lease,
            keep=self.settings.soft_time_limit,
        )
        return [Admitted(*row) for row in rows]

    def _most(self, name: str, wanted: int) -> Share:
        """A destination with its own `concurrency` has no more messages leased than it can send at once."""
        slots_of_its_own = self.settings.destinations[name].concurrency
        if slots_of_its_own is None:
            return Share(wanted)
        most = slots_of_its_own * self.settings.bundle_size_of(name)
        return Share(min(wanted, most), cut=most < wanted)

    def _meter(self, shares: dict[str, Share]) -> dict[str, Share]:
        configured = self.settings.destinations
        # A probe is one message, and was granted already.
        rates = {name: configured[name].rate_limit for name, share in shares.items() if not share.probe}
        rates = {name: rate for name, rate in rates.items() if rate is not None}
        if not rates:
            return shares
        asked = [{"destination": name, "rate": rate, "size": shares[name].size} for name, rate in rates.items()]
        granted = self._granted(asked)
        if new := [one for one in asked if one["destination"] not in granted]:
            self.ask("traffic/meters.sql", names=[one["destination"] for one in new])
            granted |= self._granted(new)
        metered = {name: Share(granted.get(name, 0), metered=True) for name in rates}
        return {name: share for name, share in (shares | metered).items() if share.size}

    def _granted(self, asked: list[dict[str, Any]]) -> dict[str, int]:
        return {row.name: row.granted for row in self.ask("traffic/metered.sql", metered=json.dumps(asked))}

    def unused(self, shares: Mapping[str, Share], found: Mapping[str, int], lease: str) -> None:
        """Give back what a claim was granted and did not need."""
        spare = []
        for name, share in shares.items():
            if share.probe and not found.get(name):
                self.ask("traffic/untried.sql", destination=name, token=lease)
            if share.metered and found.get(name, 0) < share.size:
                spare.append({"destination": name, "size": share.size - found.get(name, 0)})
        if spare:
            self.ask("traffic/unspent.sql", spare=json.dumps(spare))

    def slots_for(self, bundle: Bundle) -> Literal["free", "quick", "slow"]:
        """Whether a bundle, of which nothing was begun, had room, or who has it: quick sends, so that there is room
        soon, or only slow ones."""
        room = self.rooms(publishing=True).get(bundle.destination)
        if room is None:
            return "free"
        keep, name = self.settings.soft_time_limit, bundle.destination
        [row] = self.ask("deliver/crowded.sql", token=bundle.lease, destination=name, patience=SLOW, keep=keep)
        if not row.ours:
            return "free"
        only_slow = row.slow >= room and not self._recall_the_dead(row.holders or ())
        return "slow" if only_slow else "quick"

    def _recall_the_dead(self, holders: Iterable[str]) -> bool:
        """End the leases of processes of this host that are gone. Returns whether there was one."""
        gone = [name for name in holders if name.startswith(processes.neighbourhood()) and processes.is_gone(name)]
        for name in gone:
            self.ask("claim/recall.sql", gone=name, crashed=False, hold=self.settings.queue_lease)
        return bool(gone)

    def dead_neighbours(self, recent: float) -> set[str]:
        """The processes of this host that sent within the last `recent` seconds, and are gone."""
        rows = self.ask("traffic/neighbours.sql", place=processes.neighbourhood(), recent=recent)
        found = [row.holder for row in rows]
        return {name.partition("#")[0] for name in found if processes.is_gone(name)}

    def tripped(self, destination: str, lease: str, code: str | None, error: str | None) -> bool:
        """Count a send that found the destination out of reach. Returns whether the breaker is open now."""
        settings = self.settings
        outage = {
            "destination": destination,
            "token": lease,
            "code": storable(code),
            "error": storable(error),
            "enough": settings.breaker_failures,
            "pause": settings.breaker_pause,
            "longest": settings.breaker_pause_max,
        }
        rows = self.ask("traffic/tripped.sql", **outage)
        if not rows:  # the destination has no row yet
            self.ask("traffic/meters.sql", names=[destination])
            rows = self.ask("traffic/tripped.sql", **outage)
        return bool(rows and rows[0].open)

    def recovered(self, destination: str) -> None:
        """Close the breaker: the destination has answered."""
        self.ask("traffic/recovered.sql", destination=destination)

    def states(self) -> list[Any]:
        """The destinations that were in trouble or paused: see traffic/states.sql."""
        return list(self.ask("traffic/states.sql"))

    def leave(self) -> None:
        """Note that this process no longer sends, so that nobody counts it."""
        if True in self._rooms:
            self._rooms.clear()
            self.ask("traffic/left.sql", holders=processes.names(self.threads))

    def forget_publishers(self) -> int:
        """Remove processes that sent long ago. Returns how many."""
        return int(self.ask("traffic/forget.sql")[0].count)
