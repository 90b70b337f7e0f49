"""Where a claimer goes on reading: what no claim need read again, however old a snapshot keeps it.

A lane is one priority of one destination. Its rows are read in the order of the transactions that wrote them. A claimer
remembers the last one that it took, or, if nothing was left, the snapshot in which it looked. What was open in that
snapshot may still be committed before that place: it is looked at by itself, once it is over. PgQ's batches work so.

This is only a shortcut, in the memory of one process. Each lane is read from the front once a `FRONT`: that finds what
a claim put back that did not end.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FRONT = 60.0
"""Seconds after which a lane is read from the front again."""

WEIGHTS = {1: 6, 0: 3, -1: 1}
"""How a destination's share is split among high, normal and low priority, if each has enough due."""

END = 2**63 - 1


class Snapshot(NamedTuple):
    """What a statement has seen: all transactions before `next`, but those that were `open`."""

    next: int
    open: frozenset[int]

    @classmethod
    def read(cls, text: str) -> Snapshot:
        """From the text of a pg_snapshot: the oldest open one, the next one, and all open ones."""
        _, following, listed = text.split(":")
        return cls(int(following), frozenset(int(xid) for xid in listed.split(",") if xid))


@dataclass
class Lane:
    """The place is after row `seq` of transaction `xid`."""

    xid: int = 0
    seq: int = 0
    late: set[int] = field(default_factory=set)
    """Transactions before the place, of which not all may have been read: they were open then."""
    began: float = field(default_factory=time.monotonic)

    def spans(self) -> Iterable[dict[str, Any]]:
        """Which parts of it to look at: what was late, and what comes after the place."""
        for xid in sorted(self.late):
            yield {"xid": str(xid), "seq": 0, "until": str(xid)}
        yield {"xid": str(self.xid), "seq": self.seq, "until": str(END)}

    def read(self, taken: Sequence[tuple[int, int]], snapshot: Snapshot, *, to_its_end: bool) -> None:
        """Go on after what was taken, in order; or after all that the snapshot has seen, if nothing is left."""
        if to_its_end:
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
    """The lanes that a claimer has read."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._life: str | None = None

    def spans(self, name: str, *, from_front: bool = False) -> list[dict[str, Any]]:
        """Which parts of a destination's lanes to look at: see claim/take_free.sql."""
        return [
            {"priority": priority, "weight": weight, **span}
            for priority, weight in WEIGHTS.items()
            for span in (Lane() if from_front else self._lane(name, priority)).spans()
        ]

    def _lane(self, name: str, priority: int) -> Lane:
        lane = self._lanes.get((name, priority))
        if lane is None or time.monotonic() - lane.began > FRONT:
            lane = self._lanes[name, priority] = Lane()
        return lane

    def read(
        self,
        names: Iterable[str],
        taken: Iterable[tuple[str, int, int, int]],
        snapshot: Snapshot,
        life: str,
        ends: Container[str],
    ) -> None:
        """Note what a committed take of these destinations took: destination, priority, transaction and number of each
        row. `ends`: the destinations of which nothing was left. `life`: of the server, which after a crash may give
        numbers of transactions out again."""
        before, self._life = self._life, life
        if before not in (None, life):
            self.clear()
            return
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for name, priority, xid, seq in taken:
            found.setdefault((name, priority), []).append((xid, seq))
        for name in names:
            for priority in WEIGHTS:
                if lane := self._lanes.get((name, priority)):
                    lane.read(sorted(found.get((name, priority), ())), snapshot, to_its_end=name in ends)

    def clear(self) -> None:
        """Read all from the front: a claim did not end, or the database is another one."""
        self._lanes.clear()
