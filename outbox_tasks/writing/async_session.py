"""Rows that are published through an `AsyncSession`. Nothing can be awaited in `publish`, so the rows wait.

What happens to waiting rows, there are five cases:
1. The session begins a savepoint. They are written before it. So rows that wait always belong to the innermost
   savepoint of the session.
2. That savepoint or the transaction is rolled back. The rows are dropped.
3. The session commits, or the application commits the session's connection. They are written before the commit.
4. The session ends, and its transaction was the connection's own, which goes on. They are written into that one.
5. They were published while the commit was already under way. Nobody can write them: `PublishedTooLate` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Table, Update, event, update
from sqlalchemy.engine import Transaction
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from outbox_tasks.errors import PublishedTooLate, UnsupportedSession

AFTER_COMMIT = "outbox_tasks.after_commit"
"""Key of `Session.info`: what to call after the next commit, as keys of a dict."""

WAITING = "outbox_tasks.waiting"
"""Key of `Session.info`: the rows that wait."""

JOINED = "outbox_tasks.joined"
"""Key of `Session.info`: the async connections of its transaction, each with the transaction of the connection."""

Insert = Callable[[Any, list[Any]], None]
"""Inserts rows through a connection."""
Choose = Callable[[Table], Connection]
"""Chooses the connection for a table."""


class _Entry(NamedTuple):
    row: Any
    insert: Insert
    table: Table


class _Waiting:
    def __init__(self, session: Session, table: Table) -> None:
        self.entries: list[_Entry] = []
        self._bind = engine_of(session, table)
        self.committed = False

    def write_out(self, choose: Choose) -> None:
        """Write the waiting rows, in as few calls as possible."""
        while self.entries:
            insert, group = next(groupby(self.entries, key=attrgetter("insert")))
            alike: list[_Entry] = list(group)
            insert(choose(alike[0].table), [entry.row for entry in alike])
            del self.entries[: len(alike)]

    def write_to(self, connection: Connection) -> None:
        """Write the waiting rows through this connection, which is about to commit."""
        self.write_out(lambda table: connection)

    def drop(self, *_: object) -> None:
        """Forget the waiting rows: their transaction or savepoint is rolled back."""
        self.entries.clear()

    def is_for(self, connection: Connection) -> bool:
        """Whether the session inserts messages through this connection."""
        return self._bind is connection or self._bind is connection.engine

    def watch(self, connection: Connection, change: Callable[..., object] = event.listen) -> None:
        """Listen to the connection's own events: the application may end its transaction itself. `event.remove` stops
        that: the connection may live longer than the session's transaction."""
        if self.is_for(connection):
            change(connection, "commit", self.write_to)
            change(connection, "rollback", self.drop)


def defer(session: Session, table: Table, insert: Insert, rows: list[Any]) -> None:
    """Call `insert` with these rows before the transaction commits, together with others that wait for it.

    A session with several engines chooses the one of this table.
    """
    if WAITING not in session.info:
        session.info[WAITING] = waiting = _Waiting(session, table)
        for connection in session.info.get(JOINED, ()):
            waiting.watch(connection)
    session.info[WAITING].entries.extend(_Entry(row, insert, table) for row in rows)


def engine_of(session: Session, table: Table) -> Engine | Connection:
    """Where the session writes to a table: a session with replicas reads elsewhere. Raises `UnsupportedSession`."""
    try:
        return session.get_bind(clause=_write_to(table))
    except UnboundExecutionError as error:
        reason = (
            f"it has no engine for {table.name}: its `binds` name other classes and tables. Give it a `bind=` for the "
            "rest, name the outbox's table in its `binds` (see docs/publishing.md), or pass the connection of one of "
            'its classes: `session.connection(bind_arguments={"mapper": Order})`'
        )
        raise UnsupportedSession(reason=reason) from error


def chosen_by(session: Session, table: Table) -> Connection:
    """The connection on which the session writes to a table."""
    return session.connection(bind_arguments={"bind": engine_of(session, table)})


@cache
def _write_to(table: Table) -> Update:
    # An UPDATE stands for all writes: the `get_bind` in SQLAlchemy's documentation takes an INSERT for a read.
    return update(table)


@event.listens_for(Session, "after_begin")
def _joined(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if transaction.nested or not connection.dialect.is_async:
        return
    joined: dict[Connection, Transaction | None] = session.info.setdefault(JOINED, {})
    joined[connection] = connection.get_nested_transaction() or connection.get_transaction()
    if WAITING in session.info:
        session.info[WAITING].watch(connection)


@event.listens_for(Session, "after_transaction_create")
def _begun(session: Session, transaction: SessionTransaction) -> None:
    if transaction.nested and WAITING in session.info:
        parent: Any = transaction.parent
        session.info[WAITING].write_out(lambda table: parent.connection(None, clause=_write_to(table)))


@event.listens_for(Session, "before_commit")
def _commits(session: Session) -> None:
    if WAITING in session.info:
        session.info[WAITING].write_out(partial(chosen_by, session))


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    if session.get_nested_transaction() is None:
        if WAITING in session.info:
            session.info[WAITING].committed = True
        for call in session.info.pop(AFTER_COMMIT, ()):
            call()


@event.listens_for(Session, "after_rollback")
def _rolled_back(session: Session) -> None:
    if WAITING in session.info:
        session.info[WAITING].drop()


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is not None:
        return
    session.info.pop(AFTER_COMMIT, None)
    joined: dict[Connection, Transaction | None] = session.info.pop(JOINED, {})
    waiting: _Waiting | None = session.info.pop(WAITING, None)
    if waiting is None:
        return
    for connection, outer in joined.items():
        if outer is not None and outer.is_active and waiting.is_for(connection):  # case 4
            waiting.write_to(connection)
        waiting.watch(connection, event.remove)
    if waiting.entries and waiting.committed:
        raise PublishedTooLate(count=len(waiting.entries), event_type=waiting.entries[0].row["event_type"])
