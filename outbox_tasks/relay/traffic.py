"""What is asked and said of destinations: whether to leave one alone, and how much of the cluster it may take."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox_tasks.database import begin, breaker, slots
from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import tables
from outbox_tasks.model import Bundle
from outbox_tasks.text import storable

ROOMS_FOR = 2.0
"""Seconds for which it is taken for granted how many processes publish."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many messages of a destination a claim may lease."""

    size: int
    probe: bool = False
    """The destination is left alone, and this one message is to try it."""
    metered: bool = False
    """The destination has a rate: what is not leased is put back."""
    cut: bool = False
    """It is less than was wanted: no more than its slots can send, those apart that slow sends hold."""

    @property
    def bounded(self) -> bool:
        """Whether it says nothing of how much is due when all of it is taken."""
        return self.probe or self.metered or self.cut


class Traffic:
    """The destinations of one outbox."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = database.settings
        self._rooms: dict[bool, tuple[float, dict[str, int | None]]] = {}
        self.threads = 1
        """How many tasks of this process send at once: for the others it is as many processes."""
        self.flooding: set[str] = set()
        """Those of which the last claim of this process could have had more."""
        self._tables = t = tables(database.settings.database_schema)
        self._admit = breaker.admit(t)
        self._give_back = begin.give_back(t)
        self._tripped = breaker.tripped(t)
        self._recovered = breaker.recovered(t)
        self._crowded = slots.crowded(t)
        self._metered = slots.metered(t)

    def rooms(self, holder: str | None = None) -> Mapping[str, int | None]:
        """How many sends to each destination may run at once; None: any number. `holder`: we publish, under this name.

        What is not limited by its own `concurrency` leaves some of the processes to the others.
        """
        until, rooms = self._rooms.get(holder is not None, (0.0, {}))
        now = time.monotonic()
        if now >= until:
            processes = self._processes(holder)
            names = self._settings.destinations
            rooms = {name: self._settings.room_of(name, processes) for name in names}
            limited = [{"destination": name, "room": room} for name, room in rooms.items() if room is not None]
            if limited and holder is not None:
                self._database.do(slots.make_slots(self._tables), {"wanted": json.dumps(limited)})
            self._rooms[holder is not None] = now + ROOMS_FOR, rooms
        return rooms

    def _processes(self, holder: str | None) -> int:
        if holder is None:
            return int(self._database.rows(slots.publishers(self._tables), {})[0][0])
        others = self._database.rows(slots.seen(self._tables), {"holders": self._all_of(holder)})[0][0]
        return int(others) + self.threads

    def _all_of(self, holder: str) -> list[str]:
        """One name for each that sends at once."""
        return [holder, *(f"{holder}#{n}" for n in range(1, self.threads))]

    def admit(self, wanted: Mapping[str, int], lease: str) -> dict[str, Share]:
        """Of the messages wanted of each destination, those that may be leased now; of a probe, under this lease."""
        settings, rooms = self._settings, self.rooms()
        shares = {name: self._most(name, size) for name, size in wanted.items()}
        asked = [{"destination": name, "room": rooms[name], "patience": settings.patience_of(name)} for name in wanted]
        parameters = {"asked": json.dumps(asked), "token": UUID(lease), "hold": settings.queue_lease}
        for row in self._database.rows(self._admit, parameters):
            if row.left_alone:
                shares[row.name] = Share(int(row.tried), probe=row.tried)
            elif (room := rooms[row.name]) is not None:
                size = max(0, room - row.slow) * settings.bundle_size_of(row.name)
                shares[row.name] = Share(min(size, shares[row.name].size), cut=True)
        return self._meter({name: share for name, share in shares.items() if share.size})

    def _most(self, name: str, wanted: int) -> Share:
        """With slots of its own, a destination has no more leased than can be sent at once."""
        slots_of_its_own = self._settings.destinations[name].concurrency
        if slots_of_its_own is None:
            return Share(wanted)
        most = slots_of_its_own * self._settings.bundle_size_of(name)
        return Share(min(wanted, most), cut=most < wanted)

    def _meter(self, shares: dict[str, Share]) -> dict[str, Share]:
        configured = self._settings.destinations
        # A probe is not counted: it has been granted already, and is only one.
        rates = {name: configured[name].rate_limit for name, share in shares.items() if not share.probe}
        rates = {name: rate for name, rate in rates.items() if rate is not None}
        if not rates:
            return shares
        asked = [{"destination": name, "rate": rate, "size": shares[name].size} for name, rate in rates.items()]
        granted = self._granted(asked)
        if new := [one for one in asked if one["destination"] not in granted]:
            self._database.do(slots.make_meters(self._tables), {"wanted": json.dumps(new)})
            granted |= self._granted(new)
        metered = {name: Share(granted.get(name, 0), metered=True) for name in rates}
        return {name: share for name, share in (shares | metered).items() if share.size}

    def _granted(self, asked: list[dict[str, Any]]) -> dict[str, int]:
        rows = self._database.rows(self._metered, {"metered": json.dumps(asked)})
        return {row.name: row.granted for row in rows}

    def unused(self, shares: Mapping[str, Share], found: Mapping[str, int], lease: str) -> None:
        """Hand back what a claim was granted and did not need."""
        spare = []
        for name, share in shares.items():
            if share.probe and not found.get(name):
                self._database.do(breaker.untried(self._tables), {"target": name, "token": UUID(lease)})
            if share.metered and found.get(name, 0) < share.size:
                spare.append({"destination": name, "size": share.size - found.get(name, 0)})
        if spare:
            self._database.do(slots.unspent(self._tables), {"spare": json.dumps(spare)})

    def crowded(self, bundle: Bundle, holder: str) -> bool | None:
        """Why nothing of a bundle was begun: None if not for the want of a slot; else whether it would be long to
        wait for one."""
        room = self.rooms(holder).get(bundle.destination)
        if room is None:
            return None
        parameters = {"target": bundle.destination, "sender": bundle.sender, "room": room}
        [row] = self._database.rows(self._crowded, parameters)
        if row.got:
            return None
        return bool(row.slow >= room) and not self._vacate(bundle.destination, holder)

    def _vacate(self, destination: str, holder: str) -> int:
        """Free the slots of processes that are gone, of those that we could see. Returns how many."""
        found = [row.holder for row in self._database.rows(slots.holders(self._tables), {"target": destination})]
        gone = [name for name in found if name.startswith(_place(holder)) and not alive(_pid(name))]
        if not gone:
            return 0
        return self._database.do(slots.vacated(self._tables), {"target": destination, "gone": gone})

    def dead_neighbours(self, holder: str, recent: float) -> set[str]:
        """The processes that we could see, have published within so many seconds, and are gone."""
        parameters = {"place": _place(holder), "recent": recent}
        found = self._database.rows(slots.neighbours(self._tables), parameters)
        return {row.holder.partition("#")[0] for row in found if not alive(_pid(row.holder))}

    def give_back(self, bundle: Bundle, fence: Mapping[str, Any]) -> int:
        """Release what was not begun because its destination is left alone; returns how many."""
        return len(self._database.rows(self._give_back, {**fence, "target": bundle.destination}))

    def tripped(self, destination: str, lease: str, code: str | None, error: str | None) -> bool:
        """Count a send that found the destination out of reach. Returns whether it is left alone now."""
        settings = self._settings
        parameters = {
            "target": destination,
            "token": UUID(lease),
            "reason_code": storable(code),
            "reason": storable(error),
            "enough": settings.breaker_failures,
            "pause": settings.breaker_pause,
            "longest": settings.breaker_pause_max,
        }
        return bool(self._database.rows(self._tripped, parameters)[0].open)

    def recovered(self, destination: str) -> None:
        """The destination has answered."""
        self._database.do(self._recovered, {"target": destination})

    def states(self) -> list[Any]:
        """The destinations in trouble, or paused: see `breaker.states`."""
        return list(self._database.rows(breaker.states(self._tables), {}))

    def leave(self, holder: str) -> None:
        """This process publishes no more: others need not be left a place that is not there."""
        if True in self._rooms:
            self._rooms.clear()
            self._database.do(slots.left(self._tables), {"holders": self._all_of(holder)})

    def forget_publishers(self) -> int:
        """Forget processes that published long ago; returns how many."""
        return self._database.do(slots.forget_publishers(self._tables), {})


def _place(holder: str) -> str:
    return holder.rpartition(":")[0] + ":"


def _pid(holder: str) -> int:
    return int(holder.rpartition(":")[2].partition("#")[0])


def alive(pid: int) -> bool:
    """Whether there is a process of this number on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
