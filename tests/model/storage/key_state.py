"""What the model of keys knows."""

from __future__ import annotations

from typing import Any, NamedTuple

OVERTAKEN = "no message is leased before the earlier one of its key has ended"

AT_WORK = frozenset({"ready", "later", "held", "waiting", "leased"})


class Row(NamedTuple):
    """A message, by the table that it is in. `later`: in `ready`, and not due yet; `leased`: or in `runs`."""

    key: str
    place: str
    free: bool = False
    lease: int = -1
    """The first message of its bundle."""
    passed: bool = False
    """It was dead once, and others could go on."""


Rows = tuple[Row, ...]


class Writer(NamedTuple):
    """A transaction that writes one message: its mark, and then its number."""

    key: str
    floor: int
    number: int = -1


class Mark(NamedTuple):
    """That a transaction writes this key, and may get any number from the floor on."""

    key: str
    floor: int


class Change(NamedTuple):
    """A statement of somebody else than a claim, on its way."""

    what: str
    after: tuple[tuple[int, Row], ...]
    locked: frozenset[int]
    keys: tuple[str, ...] = ()
    """Keys of which it has not yet marked the first held row."""
    has_looked: bool = False
    seen: tuple[tuple[int, Row], ...] = ()
    """What was held of these keys as it looked."""
    notes: frozenset[str] = frozenset()
    """Keys of which others had locked all that it saw."""
    read: frozenset[str] = frozenset()
    """It reads the note of this key."""


class Memory(NamedTuple):
    """What a claimer knows: it has read all below the place, but what those may still write whose marks it saw."""

    place: int = 0
    marks: frozenset[Any] = frozenset()
    gone: frozenset[int] = frozenset()
    """Messages whose leases it does not read any more."""


class Claim(NamedTuple):
    """What a claim has read and done so far."""

    who: int
    last: int
    marks: Any = None
    looked: Any = None
    """The rows as it saw them. It has locked those that it may take or put aside."""
    theirs: frozenset[int] = frozenset()
    """Rows that others had locked then."""
    after: Any = None
    """What it makes of the rows."""
    locked: frozenset[int] = frozenset()
    memory: Memory = Memory()
    notes: frozenset[str] = frozenset()


class Way(NamedTuple):
    """What a claim may do, of one key or of all: what is told of it, the rows, what it locks, and its notes."""

    told: str = ""
    after: dict[int, Row] = {}  # noqa: RUF012 - never changed
    holds: frozenset[int] = frozenset()
    notes: frozenset[str] = frozenset()

    def and_then(self, other: Way) -> Way:
        return Way(
            self.told + other.told, {**self.after, **other.after}, self.holds | other.holds, self.notes | other.notes
        )


class State(NamedTuple):
    """All there is. The rows are what is committed."""

    rows: Rows
    memories: tuple[Memory, ...]
    writers: tuple[Writer, ...] = ()
    changes: tuple[Change, ...] = ()
    claim: Claim | None = None
    notes: frozenset[str] = frozenset()
    """Keys that may be free."""

    def with_rows(self, after: dict[int, Row]) -> State:
        return self._replace(rows=tuple(after.get(n, row) for n, row in enumerate(self.rows)))
