"""Which of the messages go that a claim of keys has looked at: see claim/look_keys.sql.

The rows of a key, ready ones and held ones, are its queue. What goes of it goes together, as one run: up to the first
row that must not go yet. What is ready and does not go is put aside, so no claim reads it again there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from outbox_tasks.relay.store.lanes import END
from outbox_tasks.settings.destination import Destination

BYTES = 4 * 1024 * 1024
"""The payloads of one run have at most so many bytes, unless it is a single message."""

_number = attrgetter("seq")


@dataclass(slots=True)
class Queue:
    """The messages of a key that a claim has looked at, in the order of their numbers, and what holds them up."""

    rows: list[Any] = field(default_factory=list)
    leased: bool = False
    run: int | None = None
    stop: int | None = None
    """The first one that waits, or is a dead letter that blocks."""
    floor: int | None = None
    """An open transaction may still write what is higher."""

    @property
    def blocker(self) -> object:
        """What makes the key busy, if anything does: a lease of the key, or the number of a message."""
        head = self.rows[0]
        if self.leased:
            return head.destination, head.key
        return self.run or (self.stop if self.stop is not None and self.stop < head.seq else None)

    def is_late(self, row: Any) -> bool:
        """Whether an earlier message may still be written. When that is over, the claimer goes back to it."""
        return self.floor is not None and bool(row.seq > self.floor)


@dataclass(slots=True)
class Window:
    """What a claim has looked at of a destination, and what it does with that."""

    size: int
    """How many messages it may take."""
    longest: int
    """Most messages of a run."""
    limits: Destination
    seen: int
    """All ready rows up to this number are in the window."""
    tries: bool = False
    """Whether it takes one message only: of a key whose first message has never failed, if there is such a key."""
    taken: list[Any] = field(default_factory=list)
    replaced: set[int] = field(default_factory=set)
    """Numbers of the taken ones that have failed, and that a newer one of their key replaces."""
    behind: list[Any] = field(default_factory=list)
    """Ready rows that are held from now on."""
    early: list[Any] = field(default_factory=list)
    """First rows of their keys that are not due yet."""
    busy: list[Queue] = field(default_factory=list)
    place: int = 0
    """The lowest number that may still be ready."""

    def read(self, rows: Iterable[Any]) -> None:
        """Judge what was found of a destination."""
        queues: dict[str, Queue] = {}
        found = []
        for row in rows:
            queue = queues.get(row.key) or queues.setdefault(row.key, Queue())
            if row.seq is None:
                queue.leased, queue.run, queue.stop, queue.floor = row[-4:]
            else:
                found.append(row)
        ready = [row.seq for row in found if not row.is_held]
        if len(ready) >= self.size:
            self.seen = ready[-1]
        self.place = self.seen + 1
        if len(ready) < len(found):
            found.sort(key=_number)
        for row in found:
            queues[row.key].rows.append(row)
        for queue in sorted((one for one in queues.values() if one.rows), key=self._turn):
            self._judge(queue)

    def _turn(self, queue: Queue) -> tuple[bool, int]:
        head = queue.rows[0]
        return self.tries and head.attempts > 0, head.seq

    def _judge(self, queue: Queue) -> None:
        rows, head = queue.rows, queue.rows[0]
        if (queue.leased or queue.run or queue.stop) and queue.blocker is not None:
            self.busy.append(queue)
            self._put_aside(queue, rows)
            return
        length, room = self._length(queue), (1 if self.tries else self.size) - len(self.taken)
        if length > room or not head.mine:
            length = min(length, room)
            self._leave(rows[length:])
        elif length:
            if length < len(rows):
                self._put_aside(queue, rows[length:])
        elif head.age < 0 and not queue.is_late(head):
            self.early.append(head)
            self._put_aside(queue, rows[1:])
        self.taken += rows[:length]
        if head.latest and head.attempts and length and any(row.age >= 0 for row in rows[1:]):
            self.replaced.add(head.seq)

    def _length(self, queue: Queue) -> int:
        """How many of a free key go together."""
        last = min([one for one in (queue.floor, queue.stop) if one is not None], default=END)
        load, cut = 0, False
        for place, row in enumerate(queue.rows):
            if not row.mine or row.age < 0 or place == self.longest or row.seq > last:
                return place
            if (row.is_held and row.seq > self.seen) or (cut and not row.is_held):
                return place
            cut = row.cut
            load += row.size
            single = self._goes_alone(row)
            if place and (single or load > BYTES):
                return place
            if single:
                return 1
        return len(queue.rows)

    def _goes_alone(self, row: Any) -> bool:
        """Whether it may have failed a bundle, may be replaced, or can't be sent any more."""
        limits = self.limits
        return bool(
            row.alone
            or (row.latest and row.attempts > 0)
            or row.attempts >= limits.max_attempts
            or row.size > limits.largest
            or (limits.max_age is not None and row.age > limits.max_age)
        )

    def _put_aside(self, queue: Queue, rows: Sequence[Any]) -> None:
        kept = [row for row in rows if not row.is_held and not queue.is_late(row)]
        self.behind += [row for row in kept if row.mine]
        self._leave([row for row in kept if not row.mine])

    def _leave(self, rows: Iterable[Any]) -> None:
        self.place = min([self.place, *(row.seq for row in rows if not row.is_held)])
