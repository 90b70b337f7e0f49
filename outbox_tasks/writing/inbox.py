"""`Inbox`: each message takes effect once, however often it is delivered.

The consumer marks the message in the transaction of the effect, so both are committed or neither.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload
from uuid import UUID

from celery import current_task
from sqlalchemy import Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_tasks.database.schema import LOST_TABLE, tables, where
from outbox_tasks.errors import (
    FeedMissing,
    InboxCollision,
    InboxMisused,
    SchemaMissing,
)
from outbox_tasks.text import is_text, short
from outbox_tasks.writing.execution import DjangoConnection, Verb
from outbox_tasks.writing.transactions import (
    AnyAsync,
    SyncSession,
    is_awaited,
    is_django,
    is_kind,
    sqlstate,
    transaction_of,
    trouble,
    unwrapped,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

log = logging.getLogger(__name__)

R = TypeVar("R")

MessageId: TypeAlias = "UUID | str"
Begin: TypeAlias = (
    "sessionmaker[Any] | Engine | scoped_session[Any] | DjangoConnection | Callable[[], AbstractContextManager[Any]]"
)
AsyncBegin: TypeAlias = "async_sessionmaker[Any] | AsyncEngine | Callable[[], AbstractAsyncContextManager[Any]]"

MAX_CHARACTERS = 255
"""Of a consumer's name, and of a message id. Both are parts of a key."""

TRIES_AT_MOST = 10
"""How often `once` tries to mark a message that others mark at the same moment."""

ASYNC = "sqlalchemy.ext.asyncio"

SESSION = "session"
"""The parameter of a decorated function that gets the session."""


class Inbox:
    """Remembers, in the consumer's own database, which messages `consumer` has taken.

    `consumer` names one effect, in 1 to 255 characters: two effects of the same message need two names. `schema` has
    the table `outbox_inbox`; None: the first schema of the connection's search_path that has it. An inbox needs no
    settings. Raises `InboxMisused`.
    """

    def __init__(self, consumer: str, *, schema: str | None = None) -> None:
        if not _is_storable(consumer):
            reason = f"a consumer's name must be text of 1 to {MAX_CHARACTERS} characters, without NUL"
            raise InboxMisused(consumer=short(consumer), reason=reason)
        self.consumer = consumer
        self._schema = schema
        self._first = Verb("write/first.sql", schema, "first.sql")

    @overload
    def first(self, session: AnyAsync, message_id: MessageId) -> Awaitable[bool]: ...
    @overload
    def first(self, session: SyncSession, message_id: MessageId) -> bool: ...
    def first(self, session: SyncSession | AnyAsync, message_id: MessageId) -> bool | Awaitable[bool]:
        """Mark a message in the session's transaction. True: it is new, so go on; False: it is a duplicate.

        If another open transaction has marked the same message, this waits for its end: the answer is False after its
        commit, True after its rollback. (With REPEATABLE READ and SERIALIZABLE, PostgreSQL raises a serialization
        failure after its commit; run the transaction again. MySQL and MariaDB may raise `InboxCollision`; `once` runs
        the transaction again by itself.) Await this with an `AsyncSession` or `AsyncConnection`. Raises
        `InboxMisused`, `NotInTransaction`, `SchemaMissing` or `FeedMissing`.
        """
        message = self._checked(message_id)
        session = unwrapped(session)
        if is_awaited(session):
            return session.run_sync(self._mark, message)  # type: ignore[union-attr]
        return self._mark(session, message)

    @overload
    def once(
        self, begin: AsyncBegin, *, message_id: Callable[..., MessageId] | None = None
    ) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Coroutine[Any, Any, R | None]]]: ...
    @overload
    def once(
        self, begin: Begin, *, message_id: Callable[..., MessageId] | None = None
    ) -> Callable[[Callable[..., R]], Callable[..., R | None]]: ...
    def once(self, begin: Begin | AsyncBegin, *, message_id: Callable[..., MessageId] | None = None) -> Any:
        """A decorator: the function runs once for each message, in a transaction that also has the mark.

        `begin` opens that transaction: a `sessionmaker`, `Engine` or `scoped_session`, Django's `connection`, or a
        function that returns a context manager of a session in a transaction. For an `async def` function it is one of
        their async counterparts. The message is marked first. If the function has a parameter `session`, it gets the
        session; callers leave it out. An exception (also Celery's `Retry`, `Ignore` and `Reject`) rolls the effect and
        the mark back. A duplicate does not call the function, and returns None.

        The message id is the id of the running Celery task, which redeliveries and retries keep; or `message_id` makes
        it from the arguments of the call. Put this decorator below `@app.task`.
        Raises `InboxMisused`, now or when a call has no id; a call also raises what `first` raises.
        """
        opens = self._opening(begin)
        identify = message_id or self._id_of_task

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            asynchronous = inspect.iscoroutinefunction(function)
            if _is_async(begin) not in (asynchronous, None):
                name = getattr(function, "__qualname__", repr(function))
                reason = f"{name} is {'' if asynchronous else 'not '}async, but the argument of once() "
                raise InboxMisused(consumer=self.consumer, reason=reason + ("is not" if asynchronous else "is"))
            call = _with_session(function)

            @wraps(function)
            def once(*args: Any, **kwargs: Any) -> Any:
                message = self._checked(identify(*args, **kwargs))
                for tries_left in reversed(range(TRIES_AT_MOST)):
                    with self._may_collide(message, tries_left), opens() as session:
                        return call(session, args, kwargs) if self.first(session, message) else self._skipped(message)
                raise AssertionError  # the last try returns or raises

            @wraps(function)
            async def once_async(*args: Any, **kwargs: Any) -> Any:
                message = self._checked(identify(*args, **kwargs))
                for tries_left in reversed(range(TRIES_AT_MOST)):
                    with self._may_collide(message, tries_left):
                        async with opens() as session:
                            new = await self.first(session, message)
                            return await call(session, args, kwargs) if new else self._skipped(message)
                raise AssertionError

            wrapper = once_async if asynchronous else once
            _hide_session(wrapper, function)
            return wrapper

        return decorate

    @contextmanager
    def _may_collide(self, message: str, tries_left: int) -> Iterator[None]:
        """Let a transaction that could not mark this message be tried again, if tries are left."""
        try:
            yield
        except InboxCollision as error:
            if not tries_left or (error.consumer, error.message) != (self.consumer, message):
                raise

    def _skipped(self, message: str) -> None:
        log.info("%s has taken message %s before; it is a duplicate and was skipped", self.consumer, message)

    def _checked(self, message_id: object) -> str:
        message = str(message_id) if isinstance(message_id, UUID) else message_id
        if not isinstance(message, str) or not _is_storable(message):
            reason = (
                f"the message id {short(message)!r} is not a UUID, nor text of 1 to {MAX_CHARACTERS} characters "
                "without NUL. Pass the id that came with the message, or a hash of it if it is longer"
            )
            raise InboxMisused(consumer=self.consumer, reason=reason)
        return message

    def _mark(self, session: Any, message: str) -> bool:
        try:
            parameters = {"consumer": self.consumer, "message": message}
            transaction = transaction_of(session, self.consumer)
            return transaction.run(self._first, parameters, tables(self._schema).inbox) == 1
        except Exception as error:  # each driver and framework has errors of its own
            if sqlstate(error) in LOST_TABLE:
                raise SchemaMissing(where=where(self._schema)) from error
            kind, reason = trouble(error)
            if kind == "missing":
                raise FeedMissing(table="outbox_inbox", where=where(self._schema)) from error
            if kind == "collision":
                raise InboxCollision(consumer=self.consumer, message=message, reason=reason) from error
            raise

    def _id_of_task(self, *_: Any, **__: Any) -> MessageId:
        id = current_task.request.id if current_task else None
        if id is None:
            reason = "no Celery task is running whose id could be the message id; give once() a `message_id`"
            raise InboxMisused(consumer=self.consumer, reason=reason)
        return str(id)

    def _opening(self, begin: Any) -> Callable[[], Any]:
        """A function that opens a transaction: it returns a context manager of the session."""
        if is_django(begin):
            return partial(_in_django, begin)
        if isinstance(begin, scoped_session):
            return partial(_in_scope, begin)
        opens: Callable[[], Any] = begin if _is_async(begin) is None else begin.begin
        return opens


def _is_async(begin: object) -> bool | None:
    """Whether its transactions are for `async def` functions; None: it is a function, so we can't know."""
    if any(is_kind(begin, ASYNC, name) for name in ("async_sessionmaker", "AsyncEngine")):
        return True
    if is_django(begin) or isinstance(begin, sessionmaker | Engine | scoped_session):
        return False
    return None


@contextmanager
def _in_django(connection: Any) -> Iterator[Any]:
    from django.db import transaction  # Django may not be installed

    with transaction.atomic(using=connection.alias):
        yield transaction.get_connection(connection.alias)  # this thread's


@contextmanager
def _in_scope(registry: scoped_session[Any]) -> Iterator[Session]:
    session = registry()
    with session.begin():
        yield session


def _with_session(function: Callable[..., Any]) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Calls the function with the session at its place among the arguments, if it has the parameter."""
    parameters = inspect.signature(function).parameters
    if SESSION not in parameters:
        return lambda session, args, kwargs: function(*args, **kwargs)
    place = list(parameters).index(SESSION)
    by_name = parameters[SESSION].kind is inspect.Parameter.KEYWORD_ONLY

    def call(session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if by_name or len(args) < place:
            return function(*args, session=session, **kwargs)
        return function(*args[:place], session, *args[place:], **kwargs)

    return call


def _hide_session(wrapper: Any, function: Callable[..., Any]) -> None:
    """Hide the parameter from callers, and from Celery's check of arguments."""
    signature = inspect.signature(function)
    shown = [parameter for name, parameter in signature.parameters.items() if name != SESSION]
    wrapper.__signature__ = signature.replace(parameters=shown)


def _is_storable(value: object) -> bool:
    """Whether PostgreSQL can store it in a key."""
    return is_text(value) and 1 <= len(str(value)) <= MAX_CHARACTERS
