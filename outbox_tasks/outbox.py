"""`Outbox`: what an application publishes with."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload
from uuid import UUID

from celery import Celery, Task, chord, current_app
from celery.canvas import Signature
from celery.result import AsyncResult

from outbox_tasks.model import Message, Priority
from outbox_tasks.settings import Settings
from outbox_tasks.writing.capture import capture_app, capturing, direct, refuse_chords, refuse_unaccepted
from outbox_tasks.writing.nudge import broker_nudge
from outbox_tasks.writing.transactions import (
    AnyAsync,
    AnySession,
    Capturing,
    SyncSession,
    current,
    is_awaited,
    is_kind,
    transaction,
    unwrapped,
)
from outbox_tasks.writing.write import Writer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class Options(TypedDict, total=False):
    """The keywords of `Outbox.publish`."""

    key: str | None
    to: str | Sequence[str] | None
    headers: Mapping[str, str] | None
    deliver_at: datetime | None
    delay: float | timedelta | None
    id: UUID | None
    aggregate_type: str | None
    aggregate_id: str | None
    content_type: str | None
    priority: Priority


class Outbox:
    """Publishes messages inside the application's transactions.

    `settings` default to those of the environment and `outbox.toml`; `celery` is the application's Celery app, if it
    has one: the relay is nudged through its broker, and tasks called by name are sent by it. Make one and keep it:
    it is cheap to use and thread-safe.

    `session` is, in every method, a SQLAlchemy `Session`, `scoped_session`, `AsyncSession` or `Connection`, an SQLModel
    session, or Django's `connection`, inside a transaction. An `AsyncSession` is not awaited: its messages are
    inserted before its next savepoint or its commit, and what the database refuses is raised there. With an
    `AsyncConnection`, and only there, `publish` and `publish_many` are awaited.
    """

    def __init__(self, settings: Settings | None = None, *, celery: Celery | None = None) -> None:
        self.settings = settings or Settings()
        self.celery = celery
        self._writer = Writer(self.settings, broker_nudge(self.settings, celery))

    @overload
    def publish(
        self, session: AsyncConnection, event_type: str, payload: Any, **options: Unpack[Options]
    ) -> Awaitable[UUID]: ...
    @overload
    def publish(self, session: AnySession, event_type: str, payload: Any, **options: Unpack[Options]) -> UUID: ...
    def publish(
        self,
        session: AnySession | AsyncConnection,
        event_type: str,
        payload: Any,
        *,
        key: str | None = None,
        to: str | Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
        delay: float | timedelta | None = None,
        id: UUID | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        content_type: str | None = None,
        priority: Priority = "normal",
    ) -> UUID | Awaitable[UUID]:
        """Insert a message into the session's transaction; it is delivered if and only if that commits.

        `event_type` says what happened, in up to 255 characters. `payload` is stored as JSON (or by the serializer of
        the settings), unless it is str or bytes, which are stored as they are (as `content_type`, by default plain
        text or octets). `to` names destinations; without it the routes do. Messages with the same `key` arrive in
        the order in which they were written, each after the one before it; without one there is no order. `headers`
        travel along as text. `deliver_at` (aware) or `delay` (seconds) keep it back until then. `id` makes it yours to
        choose: a second call with the same id and content changes nothing. `priority` (high, normal or low) says which
        messages without a key go first while there are more than can be sent at once.

        Returns the id of the event. To one destination it is the message's id, by which consumers recognise a repeated
        delivery. To several, each gets a message with an id of its own, derived from this one, which is that of the
        first; and all of them carry this one as the CloudEvents attribute `eventid`.
        Raises `NotInTransaction`, or a `MessageRefused` before anything is written, or `ReusedId`.
        """
        message = Message(
            event_type, payload, key, to, headers, deliver_at, delay, id, aggregate_type, aggregate_id, content_type,
            priority,
        )  # fmt: skip
        if is_kind(session, "sqlalchemy.ext.asyncio", "AsyncConnection"):
            return session.run_sync(lambda connection: self._writer.write(connection, [message])[0])  # type: ignore[union-attr]
        return self._writer.write(session, [message])[0]  # type: ignore[arg-type]

    @overload
    def publish_many(self, session: AsyncConnection, messages: Iterable[Message]) -> Awaitable[list[UUID]]: ...
    @overload
    def publish_many(self, session: AnySession, messages: Iterable[Message]) -> list[UUID]: ...
    def publish_many(
        self, session: AnySession | AsyncConnection, messages: Iterable[Message]
    ) -> list[UUID] | Awaitable[list[UUID]]:
        """Insert several messages in one go; all are checked before the first is written. Returns their ids."""
        if is_kind(session, "sqlalchemy.ext.asyncio", "AsyncConnection"):
            return session.run_sync(self._writer.write, messages)  # type: ignore[union-attr]
        return self._writer.write(session, messages)  # type: ignore[arg-type]

    @overload
    def cancel(self, session: AnyAsync, id: UUID) -> Awaitable[bool]: ...
    @overload
    def cancel(self, session: SyncSession, id: UUID) -> bool: ...
    def cancel(self, session: SyncSession | AnyAsync, id: UUID) -> bool | Awaitable[bool]:
        """Take a committed message back, if the session's transaction commits: it is archived as discarded, unsent.

        False: it is delivered already, or on its way, or there is none with this id. Of several destinations, those
        are cancelled that can be. With an `AsyncSession` or `AsyncConnection` it is awaited. Raises `NotInTransaction`.
        """
        session = unwrapped(session)
        if is_awaited(session):
            return session.run_sync(self._writer.cancel, id)  # type: ignore[union-attr]
        return self._writer.cancel(session, id)  # type: ignore[arg-type]

    def delay(self, session: AnySession, task: Task | Signature | str, *args: Any, **kwargs: Any) -> AsyncResult:
        """`task.delay(*args, **kwargs)`, sent if and only if the session's transaction commits."""
        return self.apply_async(session, task, args, kwargs)

    def apply_async(
        self,
        session: AnySession,
        task: Task | Signature | str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult:
        """`task.apply_async(args, kwargs, **options)`, sent if and only if the session's transaction commits.

        `task` is a task, a signature (a chain or group too) or the name of a task. The result's id is that of the
        task to be. `countdown` and `eta` wait in the table; what has expired before it could be sent is discarded.
        Raises `NotInTransaction`, or a `MessageRefused` before anything is written.
        """
        if isinstance(task, chord):
            refuse_chords(task.app, "celery.chord")
        with self.capture(session):
            if isinstance(task, str):
                app = self.celery or current_app
                return app.send_task(task, args, kwargs, **options)
            return task.apply_async(args, kwargs, **options)

    @contextmanager
    def capture(self, session: AnySession) -> Iterator[None]:
        """Inside, every Celery task that this thread or coroutine calls is stored in the session's transaction.

        Any app, any way: `delay`, `apply_async`, `send_task`, chains, groups. What a call returns or raises is as
        ever. Retries of the task that is running are not stored: their exception rolls the transaction back.
        Raises `NotInTransaction`.
        """
        transaction(session, "celery.task")
        with capturing(partial(self._store, session)):
            yield

    def direct(self) -> AbstractContextManager[None]:
        """Inside, Celery tasks go straight to the broker, although `capture` is on."""
        return direct()

    def install(self, app: Celery, *, capture: Capturing | None = None) -> None:
        """Add the relay's tasks, queues, schedule and checks to an application's Celery app, whose own configuration
        stays as it is: its workers and its beat then run the relay too.

        `capture` makes every task that the app sends transactional while a transaction is open: a `scoped_session`
        (such as Flask-SQLAlchemy's `db.session`), Django's `connection`, or a function that returns the session in
        use, or None. While none is open, tasks are sent at once; `with outbox.direct():` sends them in any case.
        """
        from outbox_tasks.install import install  # what a worker needs; an application that only writes does not

        install(app, self.settings)
        if self.celery is None:
            self.celery = app
            self._writer.nudge = broker_nudge(self.settings, app)
        if capture is not None:
            capture_app(app, lambda: self._store_of(capture))

    def _store_of(self, capture: Capturing) -> Any:
        session = current(capture)
        return None if session is None else partial(self._store, session)

    def _store(self, session: AnySession, message: Message) -> object:
        destination = self.settings.task_destination(message.event_type)
        refuse_unaccepted(message, self.settings.destinations[destination])
        self._writer.write(session, [replace(message, to=destination)])
        return transaction(session, message.event_type).opened()
