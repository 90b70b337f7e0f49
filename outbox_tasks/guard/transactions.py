"""Which transaction is open where a task is called, and has changed something.

SQLAlchemy's sessions tell of themselves by their events. A session that has only read does not count: nothing of it can
be rolled back. Django's connections are known from the signal with which they connect. An `atomic` block counts from
its begin, because Django tells of no statement; the block around a `TestCase` does not.
"""

from __future__ import annotations

import re
import sys
import threading
from contextvars import ContextVar
from functools import cache
from typing import Any
from weakref import ref

from sqlalchemy import TextClause, event
from sqlalchemy.orm import ORMExecuteState, Session, SessionTransaction

from outbox_tasks.writing.internals import in_block_of_app

WRITTEN = "outbox_written"
"""The key in `Session.info` of a session whose open transaction has changed something."""

WRITES = re.compile(r"\s*(insert|update|delete|merge|replace|call)\b", re.IGNORECASE)

_sessions: ContextVar[tuple[ref[Session], ...]] = ContextVar("outbox_guarded_sessions", default=())
"""The sessions that have begun a transaction, or written, in this context."""

_django = threading.local()
"""Its `connections`: Django's connections of this thread, which live as long as the thread."""


def open_transaction() -> str | None:
    """What is open here and has changed something, for people; None: nothing."""
    for session in _open_sessions():
        if WRITTEN in session.info or session.new or session.deleted or session.dirty:
            return "a SQLAlchemy session has changes that are not committed"
    for connection in getattr(_django, "connections", ()):
        if in_block_of_app(connection):
            return f"transaction.atomic() of database {connection.alias!r} is open"
    return None


def _open_sessions() -> list[Session]:
    sessions = (reference() for reference in _sessions.get())
    return [session for session in sessions if session is not None and session.in_transaction()]


@cache
def listen() -> None:
    """Listen to all sessions, once."""
    event.listen(Session, "after_transaction_create", _begun)
    event.listen(Session, "after_flush", _written)
    event.listen(Session, "do_orm_execute", _executes)
    event.listen(Session, "after_transaction_end", _ended)
    if "django" in sys.modules:
        from django.conf import settings
        from django.db import connections
        from django.db.backends.signals import connection_created

        connection_created.connect(_connected)
        for connection in connections.all(initialized_only=True) if settings.configured else ():
            _connected(None, connection)


def _connected(sender: Any, connection: Any, **_: Any) -> None:
    known = getattr(_django, "connections", ())
    if connection not in known:
        _django.connections = (*known, connection)


def _begun(session: Session, *_: Any) -> None:
    known = _open_sessions()
    if session not in known:
        _sessions.set((*map(ref, known), ref(session)))


def _written(session: Session, *_: Any) -> None:
    session.info[WRITTEN] = True
    _begun(session)


def _executes(state: ORMExecuteState) -> None:
    is_text = isinstance(state.statement, TextClause) and WRITES.match(state.statement.text)
    if is_text or state.is_insert or state.is_update or state.is_delete:
        _written(state.session)


def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(WRITTEN, None)
