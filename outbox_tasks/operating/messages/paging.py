"""Reads a list of messages page by page, in both directions.

The order is that of an index, and a page begins at the place where another ended. So while messages come and go, none
comes twice or is left out. Only a message of a key that is sent meanwhile may come again, among those that were sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages import paging_statements
from outbox_tasks.operating.messages.find import ARCHIVED, DEAD, LANES, LOOK, STATES, Filter, bounds

FIRST_LOOK = 500
"""Rows of an index that are looked at first: mostly they are enough."""

LAST_ID = UUID(int=(1 << 128) - 1)
LAST_SEQ = (1 << 63) - 1

Kind = Literal["id", "key", "death"]
Place = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a list, and to which side of it the messages are wanted."""

    newer: bool
    part: int
    kind: Kind
    top: int
    """The last time, in milliseconds, that an id with a time in it had when the walk began."""
    place: Place | None = None
    """None: the beginning of the part, or its end."""

    def __str__(self) -> str:
        side = "newer" if self.newer else "older"
        return "~".join([side, str(self.part), self.kind, f"{self.top:x}", *map(str, self.place or ())])

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises ValueError."""
        side, part, kind, top, *place = text.split("~")
        if side not in ("newer", "older") or kind not in ("id", "key", "death") or not re.fullmatch("[0-2]", part):
            raise ValueError("no cursor")
        shapes: dict[str, tuple[Callable[[str], Any], ...]]
        shapes = {"id": (UUID,), "key": (_seq, UUID), "death": (_time, UUID)}
        values = tuple(read(value) for read, value in zip(shapes[kind], place, strict=True)) if place else None
        if not re.fullmatch("[0-9a-f]{1,12}", top):
            raise ValueError("no time")
        return cls(side == "newer", int(part), kind, int(top, 16), values)  # type: ignore[arg-type]


@dataclass(slots=True)
class Page:
    """One page of a list, the latest message first, and where the pages on both sides begin."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    newer: Cursor | None = None
    """None: there are no newer messages."""
    older: Cursor | None = None
    """None: there are no older messages."""
    complete: bool = True
    """Whether the page is full, or the list ends here. If not, the search ended at its limit of rows."""
    looked: int = 0
    reached: datetime | None = None
    """If it is not complete: when the last message that was looked at was written."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a list, in the order of one index."""

    number: int
    kind: Kind
    statement: Callable[..., Any]
    look: int
    low: int = 0
    high: int = LAST_ID.int
    """The first and the last id, if it is by id."""

    def beyond(self, newer: bool, place: Place | None) -> dict[str, Any] | None:
        """The parameters for what is beyond a place; None: nothing is."""
        if self.kind == "id":
            low, high = self.low, self.high
            if place is not None:
                low, high = (max(low, place[0].int + 1), high) if newer else (low, min(high, place[0].int - 1))
            return {"low": UUID(int=low), "high": UUID(int=high)} if low <= high else None
        if place is None:
            first, last = (-1, LAST_SEQ) if self.kind == "key" else ("-infinity", "infinity")
            place = (first, UUID(int=0)) if newer else (last, LAST_ID)
        return dict(zip(("seq" if self.kind == "key" else "time", "last"), place, strict=True))

    def place_of(self, row: Any, prefix: str = "") -> Place:
        """The place of a row, or of the last one that was looked at."""
        id = getattr(row, f"{prefix}id")
        if self.kind == "id":
            return (id,)
        return (
            getattr(row, f"{prefix}seq") if self.kind == "key" else getattr(row, f"{prefix}dead_at").isoformat(),
            id,
        )


def read_page(
    database: Database, wanted: Filter, size: int, at: Cursor | None = None, *, limit: float | None = None
) -> Page:
    """A page of `size` messages: the latest, or those beyond a cursor. `limit`: seconds that a statement may run.

    Raises ValueError if the cursor is of a list with other filters.
    """
    top = at.top if at else bounds(None)["top"].int >> 80
    parts = _parts(database, wanted, top)
    if at is None:
        at, begins = Cursor(False, 0, parts[0].kind, top), True
    elif at.part < len(parts) and parts[at.part].kind == at.kind:
        begins = False
    else:
        raise ValueError("the cursor belongs to other filters")
    page = Page()
    rows, beyond = _walk(partial(database.rows, limit=limit), wanted, size, at, parts, page)
    end = (0 if at.newer else len(parts) - 1, None)
    # Where the walk back begins: beyond the first message of this page, or of all that was looked at.
    part, place = (rows[0][0].number, rows[0][0].place_of(rows[0][1])) if rows else beyond or end
    back = None if begins else Cursor(not at.newer, part, parts[part].kind, top, place)
    ahead = beyond and Cursor(at.newer, beyond[0], parts[beyond[0]].kind, top, beyond[1])
    page.newer, page.older = (ahead, back) if at.newer else (back, ahead)
    page.messages = [_shown(row) for _, row in (reversed(rows) if at.newer else rows)]
    return page


def _walk(
    read: Callable[..., Sequence[Any]], wanted: Filter, size: int, at: Cursor, parts: Sequence[_Part], page: Page
) -> tuple[list[tuple[_Part, Any]], tuple[int, Place | None] | None]:
    """The rows of a page with their parts, and where the next page begins, if there is one. Notes in `page` how far it
    looked."""
    rows: list[tuple[_Part, Any]] = []
    number, place = at.part, at.place
    # Where all that is in an index is wanted, a page need not look further than it goes.
    every = {"states", "destination", "group"} if parts[0].kind == "death" else set()
    look = size + 1 if wanted.facts.keys() <= every else max(FIRST_LOOK, size + 1)
    while 0 <= number < len(parts):
        part = parts[number]
        here = part.beyond(at.newer, place)
        found: Sequence[Any] = ()
        if here is not None:
            asked = {**wanted.parameters, "group": wanted.group, **here, "look": look, "size": size + 1 - len(rows)}
            found = read(part.statement(newer=at.newer), asked)
            page.looked += found[0].looked
            rows += [(part, row) for row in found if row.id is not None]
        if len(rows) > size:
            last, row = rows[size - 1]
            return rows[:size], (last.number, last.place_of(row))
        if not found or found[0].reached is None:
            number, place = number + (-1 if at.newer else 1), None
        else:
            place = part.place_of(found[0], "end_")
            if page.looked >= LOOK:
                page.complete, page.reached = False, found[0].reached
                return rows, (number, place)
            look = part.look
    return rows, None


def _parts(database: Database, wanted: Filter, top: int) -> list[_Part]:
    """The parts of a list: what is found by the key, or by the death; or else by the id, the ids with a time in them
    before the others."""
    t, states = database.tables, set(wanted.states) or set(STATES)
    archived, waiting = not states.isdisjoint(ARCHIVED), not states <= set(ARCHIVED)
    if wanted.group is not None:
        return [_Part(0, "death", partial(paging_statements.dead_of_group, t), LOOK)]
    if wanted.key is None and states == {DEAD}:
        each = LOOK if wanted.destination is not None else LOOK // LANES
        return [_Part(0, "death", partial(paging_statements.dead_of_destinations, t), each)]
    made = []
    if wanted.key is not None and waiting:
        made, waiting = [_Part(0, "key", partial(paging_statements.of_key, t), LOOK)], False
    if archived or waiting:
        by_id = partial(paging_statements.by_id, t, waiting=waiting, archived=archived)
        border = ((top + 1) << 80) - 1
        high = min(border, bounds(wanted.older_than)["high"].int)
        made.append(_Part(len(made), "id", by_id, LOOK, high=high))
        made.append(_Part(len(made), "id", by_id, LOOK, low=border + 1))
    return made


def _shown(row: Any) -> dict[str, Any]:
    own = ("looked", "reached")
    return {name: value for name, value in row._mapping.items() if name not in own and not name.startswith("end_")}


def _seq(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > LAST_SEQ:
        raise ValueError("no seq")
    return int(text)


def _time(text: str) -> str:
    return datetime.fromisoformat(text).isoformat()
