"""Reads a list of messages page by page, in both directions.

The order is that of an index, and a page begins at the place where another ended. So while messages come and go, none
comes twice or is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages.find import AT_WORK, LAST_NUMBER, MESSAGES, ROWS_LOOKED_AT, Filter, shown, start

ROWS_LOOKED_AT_FIRST = 500
"""Mostly they are enough."""

Kind = Literal["seq", "death"]
Place = tuple[Any, ...]
"""A number; of a dead letter its time of death before it."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a list, and to which side of it the messages are wanted."""

    newer: bool
    kind: Kind
    place: Place | None = None
    """None: the end of the list."""

    def __str__(self) -> str:
        return "~".join(["newer" if self.newer else "older", self.kind, *map(str, self.place or ())])

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises ValueError."""
        side, kind, *place = text.split("~")
        if side not in ("newer", "older") or kind not in ("seq", "death"):
            raise ValueError("no cursor")
        shapes = {"seq": (_seq,), "death": (_time, _seq)}
        values = tuple(read(value) for read, value in zip(shapes[kind], place, strict=True)) if place else None
        return cls(side == "newer", kind, values)  # type: ignore[arg-type]


@dataclass(slots=True)
class Page:
    """One page of a list, the latest message first, and where the pages on both sides begin."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    newer: Cursor | None = None
    """None: there are no newer messages."""
    older: Cursor | None = None
    """None: there are no older messages."""
    complete: bool = True
    """Whether the page is full, or the list ends here. If not, the search ended at its limit of messages."""
    aside: list[dict[str, Any]] = field(default_factory=list)
    """If the first page is not complete: messages at work that are farther back. There may be more."""
    looked: int = 0
    reached: datetime | None = None
    """If it is not complete: when the last message that was looked at was written."""


def read_page(
    database: Database, wanted: Filter, size: int, at: Cursor | None = None, *, limit: float | None = None
) -> Page:
    """A page of `size` messages: the latest, or those beyond a cursor. `limit`: seconds that a statement may run.

    Raises ValueError if the cursor is of a list with other filters.
    """
    newer = at is not None and at.newer
    verb, beyond = start(database, wanted, newer=newer)
    kind: Kind = "death" if "time" in beyond else "seq"
    if at is not None and at.kind != kind:
        raise ValueError("the cursor belongs to other filters")
    if at is not None and at.place is not None:
        beyond |= dict(zip(("time", "last") if kind == "death" else ("last",), at.place, strict=True))
    page = Page()
    rows, end = _walk(database, verb, wanted, size, beyond, page, limit)
    # Where the walk back begins: beyond the first message of this page, or of all that was looked at.
    back = None if at is None else Cursor(not newer, kind, _place(rows[0]) if rows else end)
    ahead = Cursor(newer, kind, end) if end else None
    page.newer, page.older = (ahead, back) if newer else (back, ahead)
    page.messages = [shown(row) for row in (reversed(rows) if newer else rows)]
    if at is None and verb == MESSAGES and not page.complete:  # what is at work is found, however much was sent since
        known, asked = {row.seq for row in rows}, {**wanted.parameters, "newer": False, "last": LAST_NUMBER}
        *working, _ = database.ask(AT_WORK, limit, **asked, look=ROWS_LOOKED_AT, size=size)
        page.aside = [shown(row) for row in working if row.seq not in known]
    return page


def _walk(
    database: Database, verb: str, wanted: Filter, size: int, beyond: dict[str, Any], page: Page, limit: float | None
) -> tuple[list[Any], Place | None]:
    """The rows of a page, and where the next page begins, if there is one. Notes in `page` how far it looked."""
    rows: list[Any] = []
    # Where all that is in an index is wanted, a page need not look further than it goes.
    every = {"states", "destination", "group"} if "time" in beyond else set()
    look = size + 1 if wanted.facts.keys() <= every else max(ROWS_LOOKED_AT_FIRST, size + 1)
    while True:
        asked = {**wanted.parameters, **beyond, "look": look, "size": size + 1 - len(rows)}
        *wanted_rows, end = database.ask(verb, limit, **asked)
        page.looked += end.looked
        rows += wanted_rows
        if len(rows) > size:
            return rows[:size], _place(rows[size - 1])
        if end.end_seq is None:
            return rows, None
        beyond["last"] = end.end_seq
        place: Place = (end.end_seq,)
        if "time" in beyond:
            beyond["time"] = str(end.end_time)
            place = (end.end_time.isoformat(), end.end_seq)
        if page.looked >= ROWS_LOOKED_AT:
            page.complete, page.reached = False, end.created_at
            return rows, place
        look = ROWS_LOOKED_AT


def _place(row: Any) -> Place:
    """The place of a message."""
    return (row.dead_at.isoformat(), row.seq) if row.state == "dead" and hasattr(row, "end_time") else (row.seq,)


def _seq(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > LAST_NUMBER:
        raise ValueError("no seq")
    return int(text)


def _time(text: str) -> str:
    return datetime.fromisoformat(text).isoformat()
