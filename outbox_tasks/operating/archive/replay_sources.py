"""Where a replay reads messages: the archive, by its numbers or by id. `replay_files` reads exported files.

Each source gives them in lots, by `Place`: part by part (a file), and within a part in the order in which they
were written. So messages with a key keep their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.archive.export import LOT
from outbox_tasks.operating.archive.files import Row
from outbox_tasks.operating.messages.find import FIRST, Filter

LOOK = 5_000
"""Messages that one statement looks at."""


class Place(NamedTuple):
    """How far a replay got: the last message of a lot."""

    part: str = ""
    seq: int = -(2**63)
    id: str = ""


class Span(NamedTuple):
    """Messages that were sent from `since` on, up to and with `until`."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Counted:
    """So many messages of a kind, and one of them."""

    destination: str
    event_type: str
    state: str
    task: bool
    count: int
    id: UUID


class Source(ABC):
    """Messages to replay."""

    @abstractmethod
    def kinds(self, after: Place) -> Iterator[Any]:
        """What there is after a place."""

    @abstractmethod
    def lots(self, after: Place, size: int) -> Iterator[tuple[Place, Sequence[Row]]]:
        """The messages after a place, in lots of `size` at most; of each lot also the place of its last one."""


class Days(Source):
    """The archive."""

    def __init__(self, database: Database, wanted: Filter, span: Span) -> None:
        self._database = database
        self._parameters = {**wanted.parameters, "newer": True, "look": LOOK, "since": span.since, "to": span.until}

    def kinds(self, after: Place) -> Iterator[Any]:
        for row in self._found(after):
            yield Counted(row.destination, row.event_type, row.state, row.task, 1, row.id)

    def lots(self, after: Place, size: int) -> Iterator[tuple[Place, Sequence[Row]]]:
        for lot in in_lots(((row.seq, row.id, row.size) for row in self._found(after)), size):
            seqs = [seq for seq, _, _ in lot]
            yield Place("", seqs[-1], str(lot[-1][1])), self._database.ask("find/originals.sql", seqs=seqs)

    def _found(self, after: Place) -> Iterator[Any]:
        last = max(FIRST, after.seq)
        while True:
            *rows, end = self._database.ask("find/archived.sql", **self._parameters, last=last)
            yield from rows
            if end.end_seq is None:
                return
            last = end.end_seq


class Named(Days):
    """Messages of the archive by their ids; `missing` are those that are not there."""

    def __init__(self, database: Database, ids: Sequence[UUID]) -> None:
        self._database = database
        found = {row.id: row for row in database.ask("find/named.sql", ids=list(ids))}
        self._rows = sorted(found.values(), key=lambda row: row.seq)
        self.missing = sorted(set(ids) - found.keys())

    def _found(self, after: Place) -> Iterator[Any]:
        return iter(self._rows)


def in_lots(found: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lots of `size` at most, and of so many bytes that they fit into memory: the last value of each is its size."""
    lot: list[Any] = []
    bytes = 0
    for one in found:
        if lot and (len(lot) == size or bytes + one[-1] > LOT):
            yield lot
            lot, bytes = [], 0
        lot.append(one)
        bytes += one[-1]
    if lot:
        yield lot
