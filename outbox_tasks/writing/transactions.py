"""The application's transactions, whichever library opened them: finds the open one, writes into it, and acts after its
commit."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Table, event
from sqlalchemy.orm import Session, scoped_session

from outbox_tasks.database.schema import LOST_TABLE, NO_RIGHTS, where
from outbox_tasks.errors import NotInTransaction, RightsMissing, SchemaMissing, UnsupportedSession
from outbox_tasks.settings.django_project import name_in_tests
from outbox_tasks.writing.async_session import AFTER_COMMIT, WAITING, Insert, chosen_by, defer
from outbox_tasks.writing.execution import AnyConnection, DjangoConnection, Verb, execute
from outbox_tasks.writing.internals import block_of_test, can_await

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from typing_extensions import TypeIs


SyncSession: TypeAlias = "Session | scoped_session[Session] | Connection | DjangoConnection"
DeferringSession: TypeAlias = "AsyncSession | async_scoped_session[AsyncSession]"
AnySession: TypeAlias = "SyncSession | DeferringSession"
AnyAsync: TypeAlias = "AsyncConnection | AsyncSession | async_scoped_session[AsyncSession]"
Capturing: TypeAlias = (
    "scoped_session[Session] | async_scoped_session[AsyncSession] | DjangoConnection | Callable[[], AnySession | None]"
)


MYSQL_LOST, MYSQL_RIGHTS = (1049, 1054, 1146), (1044, 1142, 1143, 1370)
"""Numbers of MySQL's errors for a database, column or table that is missing, and for a missing right."""

MYSQL_COLLISION = (1020, 1213)
"""Numbers of its errors for a row that another transaction has changed, and for a deadlock."""


class Transaction(ABC):
    """One open transaction of the application."""

    def __init__(self, event_type: str) -> None:
        self._event_type = event_type

    @abstractmethod
    def connection(self, table: Table) -> AnyConnection:
        """The connection for a statement that is executed now. Its engine is the one that the session chooses for this
        table."""

    def run(self, verb: Verb, parameters: Mapping[str, Any], table: Table) -> int:
        """Execute a verb now; returns how many rows it returned or changed. Some drivers count the rows of an INSERT
        only if it has RETURNING. `table`: see `connection`."""
        return execute(self.connection(table), verb, parameters, self._event_type)

    def insert(self, table: Table, insert: Insert, rows: list[Any]) -> None:
        """Call `insert` with these rows: now, or with an `AsyncSession` before its commit, together with others."""
        insert(self.connection(table), rows)

    @abstractmethod
    def after_commit(self, call: Callable[..., object]) -> None:
        """Call `call` after the commit, once, however often it is given. A savepoint that is rolled back makes no
        difference: a needless nudge costs less than to know."""

    @abstractmethod
    def anchor(self) -> object:
        """An object that lives as long as the transaction. If it may live longer, it has `is_active`."""


def transaction_of(session: object, event_type: str) -> Transaction:
    """The open transaction of a session. Raises `UnsupportedSession` or `NotInTransaction`."""
    if isinstance(session, Session):  # the most common kind
        return _OfSession(session, event_type)
    session = unwrapped(session)
    if isinstance(session, Session):
        return _OfSession(session, event_type)
    if isinstance(session, Connection):
        return _OfConnection(session, event_type)
    if is_kind(session, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return _OfAsyncSession(session, event_type)
    if is_django(session):
        return _OfDjango(session, event_type)
    raise _unsupported(session)


def _unsupported(session: object) -> UnsupportedSession:
    reason = (
        f"it is a {type(session).__module__}.{type(session).__qualname__}. Pass a SQLAlchemy Session, AsyncSession, "
        "Connection or AsyncConnection, or Django's connection, that is inside a transaction"
    )
    return UnsupportedSession(reason=reason)


def unwrapped(session: Any) -> Any:
    """The session behind a scoped session; any other session as it is."""
    if isinstance(session, scoped_session) or is_kind(session, "sqlalchemy.ext.asyncio", "async_scoped_session"):
        return session()
    return session


def is_kind(session: object, module: str, name: str) -> bool:
    """Whether it is of a class of a module that may not be imported, or not even installed."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(session, getattr(loaded, name))


def is_awaited(session: object) -> bool:
    """Whether its statements have to be awaited."""
    return any(is_kind(session, "sqlalchemy.ext.asyncio", name) for name in ("AsyncSession", "AsyncConnection"))


def is_async_connection(session: object) -> TypeIs[AsyncConnection]:
    return is_kind(session, "sqlalchemy.ext.asyncio", "AsyncConnection")


def is_django(session: object) -> bool:
    """Whether it is one of Django's database connections, or a proxy of one."""
    return is_kind(session, "django.db.backends.base.base", "BaseDatabaseWrapper") or is_kind(
        session, "django.utils.connection", "ConnectionProxy"
    )


def current(capture: Any) -> Any:
    """The session that a registry or a function gives, or Django's connection; None if it is not in a transaction."""
    session = capture
    if not is_django(capture):
        registry = getattr(capture, "registry", None)
        if registry is not None and not _has_session(registry):
            return None
        session = capture()
    if session is None or not (session.in_atomic_block if is_django(session) else session.in_transaction()):
        return None
    return session


def _has_session(registry: Any) -> bool:
    """Whether it has a session in this scope. To call the registry would make one."""
    try:
        return bool(registry.has())
    except Exception:  # the application's own function names the scope; outside of a request, as in beat, it may raise
        return False


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, however SQLAlchemy or Django has wrapped it."""
    for inner in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(inner, "sqlstate", None) or getattr(inner, "pgcode", None)
        if state:
            return str(state)
    return None


def trouble(error: BaseException) -> tuple[Literal["missing", "rights", "collision"] | None, str]:
    """Why a statement failed, in any dialect, and the driver's first line. None: it failed for another reason."""
    inner = getattr(error, "orig", None) or error.__cause__ or error
    reason = str(inner).partition("\n")[0]
    state, number = sqlstate(error), inner.args[0] if inner.args else None
    if state in LOST_TABLE or number in MYSQL_LOST or reason.startswith("no such table: "):
        return "missing", reason
    if number in MYSQL_COLLISION:
        return "collision", reason
    return "rights" if state == NO_RIGHTS or number in MYSQL_RIGHTS else None, reason


def explain(error: BaseException, schema: str | None) -> str | None:
    """Raise an error that names the remedy, if we know it. Returns the SQLSTATE."""
    kind, reason = trouble(error)
    if kind == "missing":
        raise SchemaMissing(where=where(schema)) from error
    if kind == "rights":
        remedy = "The owner of the outbox tables can allow it: `outbox-tasks init --writer ROLE`."
        raise RightsMissing(act="write messages", reason=reason, remedy=remedy) from error
    return sqlstate(error)


class _OfConnection(Transaction):
    def __init__(self, connection: Connection, event_type: str) -> None:
        super().__init__(event_type)
        if not connection.in_transaction():
            raise NotInTransaction(subject=event_type)
        self._connection = connection

    def connection(self, table: Table) -> Connection:
        return self._connection

    def after_commit(self, call: Callable[..., object]) -> None:
        connection = self._connection
        if connection not in _after_commit:
            event.listen(connection, "commit", _connection_commits)
            event.listen(connection, "rollback", _connection_rolled_back)
        _after_commit.setdefault(connection, {})[call] = None

    def anchor(self) -> object:
        return self._connection.get_transaction()


class _OfSession(Transaction):
    def __init__(self, session: Session, event_type: str) -> None:
        super().__init__(event_type)
        if not session.in_transaction():
            raise NotInTransaction(subject=event_type)
        self._session = session

    def connection(self, table: Table) -> Connection:
        if WAITING in self._session.info:  # rows that came before this statement
            self._session.info[WAITING].write_out(partial(chosen_by, self._session))
        return chosen_by(self._session, table)

    def after_commit(self, call: Callable[..., object]) -> None:
        self._session.info.setdefault(AFTER_COMMIT, {})[call] = None

    def anchor(self) -> object:
        return self._session.get_transaction()


class _OfAsyncSession(_OfSession):
    """Nothing can be awaited here, so the rows wait for the commit, which is awaited. In the session's own greenlet, as
    in its events and `run_sync`, they are written at once."""

    def __init__(self, session: Any, event_type: str) -> None:
        super().__init__(session.sync_session, event_type)

    def insert(self, table: Table, insert: Insert, rows: list[Any]) -> None:
        if can_await():
            super().insert(table, insert, rows)
        else:
            defer(self._session, table, insert, rows)


class _Anchor:
    """Stands for a transaction of Django, which has no object of its own."""


class _OfDjango(Transaction):
    def __init__(self, connection: Any, event_type: str) -> None:
        super().__init__(event_type)
        if not connection.in_atomic_block:
            raise NotInTransaction(subject=event_type)
        self._connection: DjangoConnection = connection

    def connection(self, table: Table) -> DjangoConnection:
        return self._connection

    def after_commit(self, call: Callable[..., object]) -> None:
        # No relay works on a database of tests. And a test counts what waits for the commit.
        if block_of_test(self._connection) is None and name_in_tests(self._connection.alias) is None:
            self._connection.on_commit(call)

    def anchor(self) -> object:
        if (block := block_of_test(self._connection)) is not None:
            return block
        anchor = _Anchor()
        self._connection.on_commit(partial(id, anchor))  # keeps it alive: Django forgets callbacks at the end
        return anchor


_after_commit: WeakKeyDictionary[Connection, dict[Callable[..., object], None]] = WeakKeyDictionary()
"""The Core connections that have published, each with what to call after its next commit."""


def _connection_commits(connection: Connection) -> None:
    # SQLAlchemy sends this event just before the commit, so a nudge must wait for the end of the transaction.
    calls, _after_commit[connection] = _after_commit.get(connection, {}), {}
    transaction = connection.get_transaction()
    for call in calls:
        call(lambda: transaction is None or not transaction.is_active)


def _connection_rolled_back(connection: Connection) -> None:
    _after_commit[connection] = {}
