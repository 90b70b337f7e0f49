"""Where a replay reads messages: the days of the archive, or the archive by id. `replay_files` reads exported files.

Each source gives them in lots, by `Place`: part by part (a day, a file), and within a part in the order in which they
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
from outbox_tasks.errors import DayDropped, SchemaMissing
from outbox_tasks.operating.archive import replay_statements as statements
from outbox_tasks.operating.archive.export import Day
from outbox_tasks.operating.archive.files import MICROSECOND, Row
from outbox_tasks.operating.archive.partitions import attached_days
from outbox_tasks.operating.archive.statements import LOT
from outbox_tasks.operating.messages.find import Filter


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
    """As a row of `statements.kinds`."""

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
        """Rows as of `statements.kinds`: what there is after a place."""

    @abstractmethod
    def lots(self, after: Place, size: int) -> Iterator[tuple[Place, Sequence[Row]]]:
        """The messages after a place, in lots of `size` at most; of each lot also the place of its last one."""


class Days(Source):
    """The days of the archive."""

    def __init__(self, database: Database, wanted: Filter, span: Span) -> None:
        self._database, self._span = database, span
        self._parameters = wanted.parameters

    def kinds(self, after: Place) -> Iterator[Any]:
        for _, day, parameters in self._parts(after):
            for span in _spans(day, self._span):
                yield from self._rows(day, statements.kinds(day.table), {**parameters, **span})

    def lots(self, after: Place, size: int) -> Iterator[tuple[Place, Sequence[Row]]]:
        for part, day, parameters in self._parts(after):
            # Sorted here: a sort of a whole day in the database would take long, and hold back vacuum.
            found: list[bytes] = []
            for span in _spans(day, self._span):
                found += map(_packed, self._rows(day, statements.chosen(day.table), {**parameters, **span}))
            found.sort()
            originals = statements.originals(day.table)
            for lot in in_lots((_unpacked(one) for one in found), size):
                ids, seqs = [id for _, id, _ in lot], [seq for seq, _, _ in lot]
                yield Place(part, seqs[-1], str(ids[-1])), self._rows(day, originals, {"ids": ids, "seqs": seqs})

    def _parts(self, after: Place) -> Iterator[tuple[str, Day, dict[str, Any]]]:
        for day in attached_days(self._database):
            part = f"{day.day}{'' if day.whole else ' default'}"
            if part >= after.part:
                yield part, day, {**self._parameters, "after": after.seq if part == after.part else Place().seq}

    def _rows(self, day: Day, statement: Any, parameters: dict[str, Any]) -> Sequence[Any]:
        try:
            return self._database.rows(statement, parameters)
        except SchemaMissing as error:
            raise DayDropped(day=day.day) from error


class Named(Source):
    """Messages of the archive by their ids; `missing` are those that are not there."""

    def __init__(self, database: Database, ids: Sequence[UUID]) -> None:
        self._database = database
        found = {row.id: row for row in database.rows(statements.named(database.tables), {"ids": list(ids)})}
        self._found = list(found.values())
        self.missing = sorted(set(ids) - found.keys())

    def kinds(self, after: Place) -> Iterator[Any]:
        return iter([Counted(row.destination, row.event_type, row.state, row.task, 1, row.id) for row in self._found])

    def lots(self, after: Place, size: int) -> Iterator[tuple[Place, Sequence[Row]]]:
        originals = statements.originals(self._database.tables.archive)
        for lot in in_lots(sorted((row.seq, row.id, row.size) for row in self._found), size):
            ids, seqs = [id for _, id, _ in lot], [seq for seq, _, _ in lot]
            yield Place("", seqs[-1], str(ids[-1])), self._database.rows(originals, {"ids": ids, "seqs": seqs})


def _spans(day: Day, span: Span) -> Iterator[dict[str, Any]]:
    """The part of a day that lies in the span, in ranges of pages."""
    for pages in day.spans():
        # The upper bound of the statements is not included.
        since, until = max(pages["since"], span.since), min(pages["until"], span.until + MICROSECOND)
        if since < until:
            yield {**pages, "since": since, "until": until}


def _packed(row: Any) -> bytes:
    """Seq, id and size, sorted as they are. A tuple would take three times the memory."""
    return b"".join(((row.seq + 2**63).to_bytes(8), row.id.bytes, row.size.to_bytes(4)))


def _unpacked(packed: bytes) -> tuple[int, UUID, int]:
    return int.from_bytes(packed[:8]) - 2**63, UUID(bytes=packed[8:24]), int.from_bytes(packed[24:])


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
