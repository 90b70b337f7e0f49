"""What is published through an `AsyncSession` waits in the session for its commit, which is awaited anyway.

It stands and falls with savepoints as if it had been written at once: what was published in one that is rolled back
is dropped, and what was written in one but published before it is written again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

WAKE = "outbox_tasks.wake"
"""Where a session keeps the nudge that its next commit owes."""

WAITING = "outbox_tasks.waiting"
"""Where a session keeps what waits for its commit."""

Execute = Callable[..., int]
Insert = Callable[[Execute, list[Any]], None]


@dataclass(slots=True)
class _Entry:
    row: Any
    insert: Insert
    by: Execute
    depth: int | None = None
    """How many savepoints were open where it was written; None: it waits."""


@dataclass(slots=True)
class _Waiting:
    entries: list[_Entry] = field(default_factory=list)
    marks: dict[SessionTransaction, int] = field(default_factory=dict)
    """How many there were when each open savepoint began."""
    released: set[SessionTransaction] = field(default_factory=set)

    def write_out(self, depth: int) -> None:
        """Write what waits, as few times as can be."""
        waiting = [entry for entry in self.entries if entry.depth is None]
        for insert, group in groupby(waiting, key=lambda entry: entry.insert):
            entries = list(group)
            insert(entries[0].by, [entry.row for entry in entries])
            for entry in entries:
                entry.depth = depth

    def leave(self, savepoint: SessionTransaction) -> None:
        """A savepoint has ended: released, or rolled back."""
        depth, mark = _depth(savepoint), self.marks.pop(savepoint, 0)
        if savepoint in self.released:
            self.released.discard(savepoint)
            for entry in self.entries:
                if entry.depth is not None and entry.depth >= depth:
                    entry.depth = depth - 1
            return
        del self.entries[mark:]
        for entry in self.entries:
            if entry.depth is not None and entry.depth >= depth:
                entry.depth = None


def defer(session: Session, insert: Insert, execute: Execute, rows: list[Any]) -> None:
    """Have `insert` called with these rows, and others that wait for the same, before the session commits."""
    waiting: _Waiting = session.info.setdefault(WAITING, _Waiting())
    waiting.entries.extend(_Entry(row, insert, execute) for row in rows)


def _depth(transaction: SessionTransaction | None) -> int:
    depth = 0
    while transaction is not None:
        depth += transaction.nested
        transaction = transaction.parent
    return depth


@event.listens_for(Session, "after_transaction_create")
def _begun(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested and WAITING in session.info:
        waiting = session.info[WAITING]
        waiting.marks[transaction] = len(waiting.entries)


@event.listens_for(Session, "before_commit")
def _commits(session: Session) -> None:
    if WAITING in session.info:
        session.info[WAITING].write_out(_depth(session.get_nested_transaction()))


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    savepoint = session.get_nested_transaction()
    if savepoint is None:
        if WAKE in session.info:
            session.info.pop(WAKE)()
    elif WAITING in session.info:
        session.info[WAITING].released.add(savepoint)


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested:
        if WAITING in session.info:
            session.info[WAITING].leave(transaction)
    elif transaction.parent is None:
        session.info.pop(WAITING, None)
        session.info.pop(WAKE, None)
