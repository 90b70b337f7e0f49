"""Takes messages with keys, and remembers where it goes on: see claim/take_keys.sql.

The place in a destination is the lowest number that may still be in ready there. What a transaction writes that is open
now has a higher number than its mark; when the mark is gone, the claimer goes back to it. As in `lanes`, this is only a
shortcut of one process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from outbox_tasks.settings import Settings
from outbox_tasks.storage.lanes import FRONT
from outbox_tasks.storage.tables import Run

BYTES = 4 * 1024 * 1024
"""The payloads of one run have at most so many bytes, unless it is a single message."""


class Keys:
    """What one claimer knows of the ready messages with keys."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._marks: set[tuple[int, int]] = set()
        self._began = time.monotonic()

    def take(self, run: Run, shares: Mapping[str, int], since: object) -> list[Any]:
        """Take up to `shares[destination]` messages, in the transaction of `run`. `since`: no lease ends before."""
        alone = run(
            "claim/alone.sql", destinations=json.dumps(list(shares)), place=self._settings.database_schema or ""
        )
        if not alone:
            return []
        marks = run("claim/marks.sql")
        high = marks[0].high
        seen = {(row.class_, row.floor) for row in marks if row.floor is not None}
        self._go_back(seen)
        heeded = sorted(seen) if self._settings.await_writers else []
        rows = run(
            "claim/take_keys.sql",
            share=json.dumps([self._share(row.destination, shares[row.destination]) for row in alone]),
            high=high,
            marks=json.dumps([{"class": one, "floor": floor} for one, floor in heeded]),
            since=since,
        )
        self._next = {row.destination: row.next for row in rows if row.seq is None}
        return [row for row in rows if row.seq is not None]

    def _go_back(self, seen: set[tuple[int, int]]) -> None:
        """Look again at what may have been committed since: after the marks that are gone."""
        if time.monotonic() - self._began > FRONT:
            self.clear()
        gone = [floor for _, floor in self._marks - seen]
        if gone:
            self._places = {name: min(place, min(gone) + 1) for name, place in self._places.items()}
        self._marks = seen

    def _share(self, name: str, size: int) -> dict[str, Any]:
        settings, limits = self._settings, self._settings.destinations[name]
        return {
            "destination": name,
            "size": size,
            "longest": min(size, settings.longest_run_of(name)),
            "bytes": BYTES,
            "blocks": settings.dead_blocks(name),
            "start": self._places.get(name, 0),
            "ceiling": limits.max_attempts,
            "oldest": limits.max_age,
            "largest": limits.largest,
        }

    def committed(self) -> None:
        """What was taken is gone: go on after it."""
        self._places |= self._next
        self._next = {}

    def clear(self) -> None:
        """Look at all from the front."""
        self._places, self._next, self._began = {}, {}, time.monotonic()
