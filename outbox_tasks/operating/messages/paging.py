"""Reads a list of messages page by page, the latest first.

The order is that of an index, and a page begins at the place where another ended. So while messages come and go, none
comes twice or is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages.find import LAST_NUMBER, Filter, shown, start

ROWS_A_LOOK, ROWS_LOOKED_AT = 500, 10_000
"""Rows of an index that one statement looks at, and in all, for the messages of a page."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a list; the messages beyond it are wanted."""

    seq: int
    died: str | None = None
    """In a list of dead letters: the time of a death. It comes before the number."""

    def __str__(self) -> str:
        return str(self.seq) if self.died is None else f"{self.seq}~{self.died}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises ValueError."""
        seq, is_of_dead, died = text.partition("~")
        if not re.fullmatch("[0-9]{1,19}", seq) or int(seq) > LAST_NUMBER:
            raise ValueError("no cursor")
        return cls(int(seq), datetime.fromisoformat(died).isoformat() if is_of_dead else None)


@dataclass(slots=True)
class Page:
    """One page of a list, the latest message first."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    older: Cursor | None = None
    """Where the next page begins; None: there are no older messages."""
    complete: bool = True
    """Whether the page is full, or the list ends here. If not, the search ended at its limit of messages."""
    looked: int = 0
    reached: datetime | None = None
    """If it is not complete: when the last message that was looked at was written."""


def read_page(
    database: Database, wanted: Filter, size: int, at: Cursor | None = None, *, limit: float | None = None
) -> Page:
    """A page of `size` messages: the latest, or those beyond a cursor. `limit`: seconds that a statement may run.

    Raises ValueError if the cursor is of a list with other filters.
    """
    verb, place = start(database, wanted, newer=False)
    by_death = "time" in place
    if at is not None:
        if (at.died is not None) != by_death:
            raise ValueError("the cursor belongs to other filters")
        place |= {"last": at.seq, **({"time": at.died} if by_death else {})}
    page = Page()
    rows: list[Any] = []
    while True:
        look = max(ROWS_A_LOOK, size + 1)
        asked = {**wanted.parameters, **place, "look": look, "size": size + 1 - len(rows)}
        *more, end = database.ask(verb, limit, **asked)
        rows += more
        page.looked += end.looked
        if len(rows) > size:
            last = rows[size - 1]
            page.older = Cursor(last.seq, last.dead_at.isoformat() if by_death else None)
            break
        if end.end_seq is None:
            break
        place["last"] = end.end_seq
        if by_death:
            place["time"] = str(end.end_time)
        if page.looked >= ROWS_LOOKED_AT:
            page.complete, page.reached = False, end.created_at
            page.older = Cursor(end.end_seq, end.end_time.isoformat() if by_death else None)
            break
    page.messages = [shown(row) for row in rows[:size]]
    return page
