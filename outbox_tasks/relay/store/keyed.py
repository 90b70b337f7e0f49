"""Takes messages with keys, and remembers where it goes on: see claim/look_keys.sql.

The place in a destination is the lowest number that may still be in ready there. What a transaction writes that is open
now has a higher number than its mark; when the mark is gone, the claimer goes back to it. As in `lanes`, this is only a
shortcut of one process.
"""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from outbox_tasks.database.connection import Run
from outbox_tasks.database.schema import PENDING
from outbox_tasks.relay.store.claimed import Claimed
from outbox_tasks.relay.store.lanes import FRONT
from outbox_tasks.relay.store.queues import Queue, Window
from outbox_tasks.settings import Settings

ROWS_FOR_A_TRY = 100
"""Ready rows that are looked at for the one message that tries a destination; claim/take.sql has the same number."""


class Keys:
    """What one claimer knows of the ready messages with keys."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._marks: set[tuple[int, int]] = set()
        self.unread: set[str] = set()
        """The destinations that have more ready messages with keys than the last claim looked at."""
        self._began = time.monotonic()
        self._first = 0

    def take(
        self, run: Run, shares: Mapping[str, int], since: object, tries: Container[str] = ()
    ) -> tuple[list[Claimed], list[Window]]:
        """Take up to `shares[destination]` messages, in the transaction of `run`. `since`: no lease ends before.
        `tries`: see `Claims.claim`. Returns them, and what `put_aside` needs afterwards."""
        self.unread.clear()
        place = self._settings.database_schema or ""
        alone = run("claim/alone.sql", destinations=json.dumps(list(shares)), place=place)
        if not alone:
            return [], []
        high, marks = self._go_back(run)
        mine = {
            row.destination: ROWS_FOR_A_TRY if row.destination in tries else shares[row.destination] for row in alone
        }
        rows = run(
            "claim/look_keys.sql",
            share=json.dumps([self._share(name, size) for name, size in mine.items()]),
            high=high,
            first=self._first,
            marks=json.dumps([{"class": one, "floor": floor} for one, floor in marks]),
            since=since,
        )
        windows = [self._window(name, size, high, rows, name in tries) for name, size in mine.items()]
        return self._taken(run, windows), windows

    def fronts(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Where these destinations go on: see claim/due.sql."""
        self._forget()
        return [{"destination": name, "start": self._places.get(name, self._first)} for name in names]

    def must_go_back(self, run: Run) -> bool:
        """Whether messages may have been committed behind the places since."""
        return bool(self._marks and self._marks - _marks(run("claim/marks.sql")))

    def _go_back(self, run: Run) -> tuple[int, Iterable[tuple[int, int]]]:
        """Look again at what may have been committed since: after the marks that are gone. Returns the last number that
        was given out, and the marks to be heeded."""
        self._forget()
        rows = run("claim/marks.sql")
        seen = _marks(rows)
        gone = [floor for _, floor in self._marks - seen]
        if gone:
            self._places = {name: min(place, min(gone) + 1) for name, place in self._places.items()}
        self._marks = seen
        return rows[0].high, sorted(seen)

    def _forget(self) -> None:
        if time.monotonic() - self._began > FRONT:
            self.clear()

    def _share(self, name: str, size: int) -> dict[str, Any]:
        return {
            "destination": name,
            "size": size,
            "longest": self._settings.longest_run_of(name),
            "blocks": self._settings.dead_blocks(name),
            "start": self._places.get(name, self._first),
        }

    def _window(self, name: str, size: int, high: int, rows: Sequence[Any], tries: bool) -> Window:
        window = Window(size, self._settings.longest_run_of(name), self._settings.destinations[name], high, tries)
        window.read([row for row in rows if row.destination == name])
        self._next[name] = window.place
        if window.seen < high:
            self.unread.add(name)
        return window

    def put_aside(self, run: Run, windows: list[Window], since: object) -> None:
        """Hold what is behind busy keys, of what `take` has looked at. Whoever ends what makes a key busy marks its
        next held row, if it can see it: so a row has no mark if the claim could lock what makes its key busy. Settles
        wait for these locks, so this is the last step of a claim, but for what needs it. It empties `windows`."""
        behind = [row for window in windows for row in window.behind]
        early = [row for window in windows for row in window.early]
        marked = self._sure(run, [queue for window in windows for queue in window.busy], since)
        windows.clear()
        if not behind and not early:
            return
        run(
            "claim/aside_keys.sql",
            behind=_where(row for row in behind),
            marked=sorted(marked),
            ready=_where(row for row in early if not row.is_held),
            held=_where(row for row in early if row.is_held),
        )

    def _sure(self, run: Run, busy: Sequence[Queue], since: object) -> set[int]:
        """Take the marks off rows of busy keys. Returns the ready rows that must have one."""
        if not busy:
            return set()
        leased = [queue.rows[0] for queue in busy if queue.leased]
        found = run(
            "claim/sure_keys.sql",
            destinations=sorted({head.destination for head in leased}),
            keys=[head.key for head in leased],
            seqs=sorted({seq for queue in busy for seq in (queue.run, queue.stop) if seq is not None}),
            since=since,
        )
        locked: set[object] = {row.seq for row in found if row.seq is not None}
        locked.update((row.destination, key) for row in found if row.seq is None for key in row.keys)
        marked = [row for queue in busy if queue.blocker in locked for row in queue.rows if row.is_held and row.free]
        if marked:
            run("claim/unmark_keys.sql", held=_where(marked))
        unsure = [queue for queue in busy if queue.blocker not in locked]
        return {next((row.seq for row in queue.rows if not row.is_held and row.mine), 0) for queue in unsure}

    def _taken(self, run: Run, windows: Sequence[Window]) -> list[Claimed]:
        taken = [row for window in windows for row in window.taken]
        if not taken:
            return []
        replaced = {seq for window in windows for seq in window.replaced}
        found = run(
            "claim/take_keys.sql",
            ready=_where(row for row in taken if not row.is_held),
            held=_where(row for row in taken if row.is_held),
        )
        said = {row.seq: row for row in found}
        return [_claimed(row, said[row.seq], row.seq in replaced) for row in taken]

    def committed(self) -> None:
        """What was taken is gone: go on after it."""
        self._places |= self._next
        self._next = {}

    def clear(self, first: int = 0) -> None:
        """Look at all from the front. What has a lower number than `first` does not count, and makes no key busy."""
        self._places, self._next, self._began, self._first = {}, {}, time.monotonic(), first


def _marks(rows: Iterable[Any]) -> set[tuple[int, int]]:
    return {(row.class_, row.floor) for row in rows if row.floor is not None}


def _where(rows: Iterable[Any]) -> str:
    """Where these rows are, as PostgreSQL writes an array."""
    return "{" + ",".join([f'"{row.at}"' for row in rows]) + "}"


def _claimed(row: Any, said: Any, replaced: bool) -> Claimed:
    return Claimed(
        row.seq, said.id, row.destination, said.event_type, row.attempts, PENDING, row.alone, row.key, row.priority,
        superseded=replaced, size=row.size, age=row.age,
    )  # fmt: skip
