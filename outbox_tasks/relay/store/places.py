"""Where a process goes on reading the keys of a destination: what no take need read again, however old a snapshot keeps
it.

This is only a shortcut, in the memory of one process, as `lanes` is. All is read from the front once a `lanes.FRONT`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from outbox_tasks.relay.store.lanes import FRONT

LONG_AGO = datetime(1, 1, 2, tzinfo=UTC)

FREED_LATELY = timedelta(seconds=5)
"""A key that became free may be seen so much later: its settle was not committed yet."""


@dataclass(slots=True)
class Place:
    """Of one destination."""

    start: int = 0
    """No new message with a lower number is in ready."""
    free_since: datetime = LONG_AGO
    """No key that became free before has anything to take."""
    few_keys: bool = True
    """The last batch had few keys, or was small: then a take looks at more messages."""
    life: str = ""
    """Of the server, in which `start` was read: see claim/take_new.sql. A crash undoes takes, and then messages that
    were taken are there again."""
    began: float = field(default_factory=time.monotonic)

    def go_on(self, start: int, life: str) -> None:
        """The next take may start here."""
        if life != self.life:
            self.life, self.start, self.free_since = life, start, LONG_AGO
        self.start = max(self.start, start)


class Places:
    """Of all destinations that the process has served in the last minute."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    def of(self, destination: str) -> Place:
        """Where to go on."""
        place = self._places.get(destination)
        if place is None or time.monotonic() - place.began > FRONT:
            place = self._places[destination] = Place()
        return place

    def known(self) -> list[dict[str, Any]]:
        """The destinations that were served lately, as claim/due.sql has them."""
        now = time.monotonic()
        self._places = {name: place for name, place in self._places.items() if now - place.began <= FRONT}
        return [
            {"destination": name, "start": place.start, "free_since": place.free_since.isoformat()}
            for name, place in self._places.items()
        ]

    def names(self) -> Iterable[str]:
        """The destinations that were served lately."""
        return self._places.keys()

    def clear(self) -> None:
        """Read all from the front: the database may be another one."""
        self._places.clear()
