"""What the model of a key knows."""

from __future__ import annotations

from typing import NamedTuple

OVERTAKEN = "no message is leased before the earlier one of its key has ended"
BOOKS = "a message is in one place"
WAITS = "neither a take nor a settle waits for a transaction of the application"

NOW, NEVER = -1, 99
"""Times of a key's row. Any other number is a message: its wait, or the time for which it is scheduled."""


class Row(NamedTuple):
    """A message, by the table that it is in; `open`: its transaction is not committed; `over`: the journal has it."""

    place: str = "none"
    passed: bool = False
    """It was dead once, and with `on_dead = "skip"` others could go on."""


Rows = tuple[Row, ...]


class Key(NamedTuple):
    """The row of `outbox_keys`."""

    leased: bool = False
    """It has a token."""
    due: int = NOW
    more: bool = False
    first: int = 0
    renewed: bool = False
    """Its token is that of a retry by Celery."""


class Write(NamedTuple):
    """What a transaction makes of the key's row, which it has locked; None: it deletes the row."""

    key: Key | None
    anew: bool = False
    """It deletes the row and inserts another one: who waits for the former finds nothing."""


class Writer(NamedTuple):
    """A transaction that writes one message: its mark, and then its number."""

    floor: int
    number: int = -1


class Change(NamedTuple):
    """A transaction of somebody else than a take: `settle`, `retry`, `expire`, `cancel`, `redrive`, `try`,
    `discard`."""

    verb: str
    what: str
    stage: str
    rows: tuple[tuple[int, Row], ...]
    """What it makes of messages. It has locked their rows."""
    back: tuple[int, ...] = ()
    """The messages that a settle or an expire puts back."""
    due: int = NOW
    """When a settle wants the key to be looked at again."""
    seen: Key | None = None
    """The key's row in the snapshot of a settle."""
    write: Write | None = None


class Take(NamedTuple):
    """A take of keys, as far as it has come."""

    stage: str
    high: int = 0
    floors: tuple[int, ...] = ()
    """The marks that it has read."""
    free: bool = False
    """Its first statement has locked the key's row, which is free and due."""
    rows: Rows = ()
    """The snapshot of its second statement."""
    key: Key | None = None
    gone: bool = False
    """The key's row, as the snapshot shows it, has been deleted since."""
    locked: frozenset[int] = frozenset()
    after: tuple[tuple[int, Row], ...] = ()
    write: Write | None = None
    start: int = 0


class State(NamedTuple):
    """All there is. Rows and key are what is committed."""

    rows: Rows
    early: frozenset[int]
    """Messages whose time has not come."""
    key: Key | None = None
    start: int = 0
    """Where takes go on reading `ready`."""
    writers: tuple[Writer, ...] = ()
    changes: tuple[Change, ...] = ()
    takes: tuple[Take, ...] = ()

    def locks(self, number: int, *, but: Change | Take | None = None) -> bool:
        """Whether somebody has locked a message's row."""
        if any(number in dict(change.rows) for change in self.changes if change is not but):
            return True
        return any(number in take.locked for take in self.takes if take is not but)

    def locks_key(self, *, but: Change | Take | None = None) -> bool:
        """Whether somebody has locked the key's row, or has inserted one that is not committed. A cancel that waits
        for it gets it before those who come later."""
        if any(c.write or (c.verb == "cancel" and c.stage == "key") for c in self.changes if c is not but):
            return True
        return any(take.free or take.write for take in self.takes if take is not but)

    def is_due(self, key: Key) -> bool:
        return key.due == NOW or (key.due != NEVER and key.due not in self.early)
