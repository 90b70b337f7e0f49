"""Where a process goes on reading: in the lanes of messages without a key, and at the places of messages with keys.
Rows that were taken stay in the index as long as an old snapshot may see them. Each take begins behind these rows, and
does not pass them again.

All this is only a shortcut, in the memory of one process. Once in `FROM_FRONT_SECONDS` everything is read from the
front again: that finds what was put back by a take that did not end.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

FROM_FRONT_SECONDS = 60.0

LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)

FREED_LATELY = timedelta(seconds=5)
"""A key that became free may be seen so much later: the settle that freed it was not committed yet."""

WEIGHTS = {1: 6, 0: 3, -1: 1}
"""How a destination's share is split among high, normal and low priority, if each has enough due."""

END = 2**63 - 1


class Snapshot(NamedTuple):
    """What a statement has seen: all transactions before `next`, but those that were `open`."""

    next: int
    open: frozenset[int]

    @classmethod
    def parsed(cls, text: str) -> Snapshot:
        """From the text of a pg_snapshot: the oldest open one, the next one, and all open ones."""
        _, following, listed = text.split(":")
        return cls(int(following), frozenset(int(xid) for xid in listed.split(",") if xid))


@dataclass
class Lane:
    """One priority of one destination. Its rows are read in the order of the transactions that wrote them, as PgQ's
    batches are. The next take begins after row `seq` of transaction `xid`: the last row that was taken. If nothing was
    left, it begins after all that the snapshot of the last take could see."""

    xid: int = 0
    seq: int = 0
    late: set[int] = field(default_factory=set)
    """Transactions before that row which were open when it was read. They may have written more rows since, so each is
    looked at by itself once it is over."""
    began: float = field(default_factory=time.monotonic)

    def spans(self) -> Iterable[dict[str, Any]]:
        """Which parts of the lane to look at: the late transactions, and what comes after the row."""
        for xid in sorted(self.late):
            yield {"xid": str(xid), "seq": 0, "until": str(xid)}
        yield {"xid": str(self.xid), "seq": self.seq, "until": str(END)}

    def note(self, taken: Sequence[tuple[int, int]], snapshot: Snapshot, *, ended: bool) -> None:
        """Note what a take has taken, in order. `ended`: nothing was left."""
        if ended:
            self.xid, self.seq = snapshot.next - 1, END
            self.late = set(snapshot.open)
            return
        if not taken:
            return
        last = taken[-1]
        self.late = {xid for xid in self.late if xid in snapshot.open or xid >= last[0] or xid >= snapshot.next}
        if last > (self.xid, self.seq):
            self.xid, self.seq = last
            self.late |= {xid for xid in snapshot.open if xid <= self.xid}


class Lanes:
    """The lanes that this process has read."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._life: str | None = None

    def spans(self, name: str) -> list[dict[str, Any]]:
        """Which parts of a destination's lanes to look at: see claim/take_keyless.sql."""
        return [
            {"priority": priority, "weight": weight, **span}
            for priority, weight in WEIGHTS.items()
            for span in self._lane(name, priority).spans()
        ]

    def _lane(self, name: str, priority: int) -> Lane:
        lane = self._lanes.get((name, priority))
        if lane is None or time.monotonic() - lane.began > FROM_FRONT_SECONDS:
            lane = self._lanes[name, priority] = Lane()
        return lane

    def note(
        self,
        names: Iterable[str],
        taken: Iterable[tuple[str, int, int, int]],
        snapshot: Snapshot,
        life: str,
        ends: Container[str],
    ) -> None:
        """Note what a committed take of these destinations took: destination, priority, transaction and number of each
        row. `ends`: the destinations of which nothing was left. `life`: a time that changes when the server crashes. It
        may then give the same numbers of transactions to others."""
        previous_life, self._life = self._life, life
        if previous_life not in (None, life):
            self.clear()
            return
        rows: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for name, priority, xid, seq in taken:
            rows.setdefault((name, priority), []).append((xid, seq))
        for name in names:
            for priority in WEIGHTS:
                if lane := self._lanes.get((name, priority)):
                    lane.note(sorted(rows.get((name, priority), ())), snapshot, ended=name in ends)

    def clear(self) -> None:
        """Read all from the front."""
        self._lanes.clear()


@dataclass(slots=True)
class Place:
    """Where to go on reading the messages with keys of one destination."""

    start: int = 0
    """No new message with a lower number is in ready."""
    free_since: datetime = LONG_AGO
    """No key that became free before has anything to take."""
    few_keys: bool = True
    """The last batch had few keys, or was small: then a take looks at more messages."""
    life: str = ""
    """A time that changes when the server crashes. A crash undoes takes, and then messages with lower numbers than
    `start` are there again."""
    began: float = field(default_factory=time.monotonic)

    def go_on(self, start: int, life: str) -> None:
        """The next take may start here."""
        if life != self.life:
            self.life, self.start, self.free_since = life, start, LONG_AGO
        self.start = start


class Places:
    """The places of all destinations that this process has served in the last minute."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    def of(self, destination: str) -> Place:
        """Where to go on."""
        place = self._places.get(destination)
        if place is None or time.monotonic() - place.began > FROM_FRONT_SECONDS:
            place = self._places[destination] = Place()
        return place

    def known(self) -> list[dict[str, Any]]:
        """The destinations that were served lately, as claim/due.sql has them."""
        now = time.monotonic()
        self._places = {name: place for name, place in self._places.items() if now - place.began <= FROM_FRONT_SECONDS}
        return [
            {"destination": name, "start": place.start, "free_since": place.free_since.isoformat()}
            for name, place in self._places.items()
        ]

    def clear(self) -> None:
        """Read all from the front."""
        self._places.clear()


class Progress:
    """How far this process has read."""

    def __init__(self) -> None:
        self.lanes, self.places = Lanes(), Places()

    @contextmanager
    def or_anew(self) -> Iterator[None]:
        """If a take inside fails, everything is read from the front: nobody knows what it has taken."""
        try:
            yield
        except BaseException:
            self.lanes.clear()
            self.places.clear()
            raise
