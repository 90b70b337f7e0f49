"""What is published through an `AsyncSession` outside of its greenlet can't be written there and then: it waits.

It is written before the next thing that decides about it: a savepoint, the commit of the session, or of the connection
that the session works on. So what waits always belongs to the innermost savepoint, and goes when that is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Executable, event
from sqlalchemy.engine import Transaction
from sqlalchemy.orm import Session, SessionTransaction

from outbox_tasks.errors import PublishedTooLate

WAKE = "outbox_tasks.wake"
"""Where a session keeps the nudge that its next commit owes."""

WAITING = "outbox_tasks.waiting"
"""Where a session keeps what waits."""

JOINED = "outbox_tasks.joined"
"""Where a session keeps the async connections that it works on: by its transaction, with the connection's."""

Execute = Callable[..., int]
Insert = Callable[[Execute, list[Any]], None]
Choose = Callable[[Executable], Connection]
"""Which connection is for a statement."""
ExecuteOn = Callable[..., int]
"""As `Execute`, with a `Choose` before it."""


@dataclass(frozen=True, slots=True)
class _Entry:
    row: Any
    insert: Insert
    by: ExecuteOn


class _Waiting:
    def __init__(self, session: Session, into: Any) -> None:
        self.entries: list[_Entry] = []
        self._session = session
        self._bind = session.get_bind(clause=into)
        self.committed = False
        self._writing = False

    def write_out(self, choose: Choose) -> None:
        """Write what waits, as few times as can be."""
        if self._writing:
            return
        self._writing = True
        try:
            while self.entries:
                insert, group = next(groupby(self.entries, key=attrgetter("insert")))
                alike: list[_Entry] = list(group)
                insert(partial(alike[0].by, choose), [entry.row for entry in alike])
                del self.entries[: len(alike)]
        finally:
            self._writing = False

    def write_to(self, connection: Connection, *_: object) -> None:
        """Write what waits through this connection, which is about to commit."""
        self.write_out(lambda clause: connection)

    def before_savepoint(self, connection: Connection, _: object) -> None:
        if not self._is_the_sessions_own(connection):
            self.write_to(connection)

    def drop(self, *_: object) -> None:
        """Forget what waits: what it belongs to is rolled back."""
        self.entries.clear()

    def _is_the_sessions_own(self, connection: Connection) -> bool:
        """Whether a savepoint is made now for a nested transaction of the session, late, as its first statement comes:
        what waits was published inside it."""
        joined, transaction = self._session.info.get(JOINED, {}), self._session.get_nested_transaction()
        return any(each.nested and connection not in joined.get(each, {}) for each in _upwards(transaction))

    def is_for(self, connection: Connection) -> bool:
        """Whether the session writes its messages through this connection."""
        return self._bind is connection or self._bind is connection.engine

    def watch(self, connection: Connection) -> None:
        """Notice what is done to the connection itself."""
        watchers = _watchers.setdefault(connection, WeakSet())
        if self.is_for(connection) and self not in watchers:
            watchers.add(self)
            for name, listener in self._listeners():
                event.listen(connection, name, listener)

    def leave(self, connection: Connection) -> None:
        """A connection that lives on beyond the session's transaction."""
        if self in _watchers.get(connection, ()):
            _watchers[connection].discard(self)
            for name, listener in self._listeners():
                event.remove(connection, name, listener)

    def _listeners(self) -> Iterable[tuple[str, Callable[..., None]]]:
        yield "commit", self.write_to
        yield "savepoint", self.before_savepoint
        yield "rollback", self.drop
        yield "rollback_savepoint", self.drop
        if self._session.twophase:
            yield "prepare_twophase", self.write_to


_watchers: WeakKeyDictionary[Connection, WeakSet[_Waiting]] = WeakKeyDictionary()
"""Who watches a connection. The connection itself, by its events, keeps them alive."""


def defer(session: Session, into: Executable, insert: Insert, by: ExecuteOn, rows: list[Any]) -> None:
    """Have `insert` called with these rows, and others that wait for the same, before the transaction commits.

    `into` is the statement by which a session with several engines chooses one.
    """
    if WAITING not in session.info:
        session.info[WAITING] = waiting = _Waiting(session, into)
        for connections in session.info.get(JOINED, {}).values():
            for connection in connections:
                waiting.watch(connection)
    session.info[WAITING].entries.extend(_Entry(row, insert, by) for row in rows)


def write_out(session: Session, choose: Choose) -> None:
    """Write what waits in the session: what comes now was published later."""
    if WAITING in session.info:
        session.info[WAITING].write_out(choose)


def write_out_to(connection: Connection) -> None:
    """The same for every session that works on the connection."""
    for waiting in tuple(_watchers.get(connection, ())):
        waiting.write_to(connection)


def chosen_by(session: Session) -> Choose:
    """The connection that the session itself would take for a statement."""
    return lambda clause: session.connection(bind_arguments={"clause": clause})


def _upwards(transaction: SessionTransaction | None) -> Iterable[SessionTransaction]:
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


@event.listens_for(Session, "after_begin")
def _joined(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if not connection.dialect.is_async:
        return
    joined: dict[SessionTransaction, dict[Connection, Transaction | None]] = session.info.setdefault(JOINED, {})
    theirs = connection.get_nested_transaction() or connection.get_transaction()
    joined.setdefault(transaction, {})[connection] = theirs
    if WAITING in session.info:
        session.info[WAITING].watch(connection)


@event.listens_for(Session, "after_transaction_create")
def _begun(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested and transaction.parent is not None and WAITING in session.info:
        parent = transaction.parent
        session.info[WAITING].write_out(lambda clause: parent.connection(None, clause=clause))


@event.listens_for(Session, "before_commit")
def _commits(session: Session) -> None:
    if session.get_nested_transaction() is None:
        write_out(session, chosen_by(session))


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    if session.get_nested_transaction() is None:
        if WAITING in session.info:
            session.info[WAITING].committed = True
        if WAKE in session.info:
            session.info.pop(WAKE)()


@event.listens_for(Session, "after_rollback")
def _rolled_back(session: Session) -> None:
    if WAITING in session.info:
        session.info[WAITING].drop()


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    joined = session.info.get(JOINED, {}).pop(transaction, {})
    if transaction.parent is not None:
        return
    session.info.pop(WAKE, None)
    session.info.pop(JOINED, None)
    waiting: _Waiting | None = session.info.pop(WAITING, None)
    if waiting is None:
        return
    for connection, theirs in joined.items():
        # The session has left a transaction that is not its own, and goes on.
        if theirs is not None and theirs.is_active and waiting.is_for(connection):
            waiting.write_to(connection)
        waiting.leave(connection)
    if waiting.entries and waiting.committed:
        raise PublishedTooLate(count=len(waiting.entries), event_type=waiting.entries[0].row["event_type"])
