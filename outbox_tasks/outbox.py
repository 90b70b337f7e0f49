"""`Outbox`: an application publishes with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload
from uuid import UUID

from celery import Celery, Task, current_app
from celery.canvas import Signature
from celery.result import AsyncResult

from outbox_tasks.errors import UncapturableTask
from outbox_tasks.model import Message, Priority
from outbox_tasks.satellites import satellite, satellites
from outbox_tasks.settings import Settings
from outbox_tasks.writing.arguments import check, check_app, check_task, each_message
from outbox_tasks.writing.broker_nudge import broker_nudge
from outbox_tasks.writing.capture import (
    capture_app,
    capturing,
    direct,
    nothing_stored,
    refuse_unaccepted,
    storing_on_commit,
)
from outbox_tasks.writing.eager import say_if_eager
from outbox_tasks.writing.record import Target
from outbox_tasks.writing.transactions import (
    AnyAsync,
    AnySession,
    Capturing,
    SyncSession,
    current,
    is_async_connection,
    is_awaited,
    transaction_of,
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

    `settings` default to those of the environment and `outbox.toml`. `celery` is the application's Celery app, if it
    has one: its broker carries the nudge, and it sends the tasks that are called by name. Make one `Outbox` and keep
    it: it is thread-safe.

    `feed`: the name of a feed. Then the messages are written into the table `outbox_feed` of the session's own
    database, which may be MySQL, MariaDB, SQLite or another PostgreSQL, and the relay copies them: see docs/feeds.md. A
    function is asked for the name at each write.

    In all methods, `session` is a SQLAlchemy `Session`, `scoped_session`, `AsyncSession` or `Connection`, an SQLModel
    session, or Django's `connection`, inside a transaction. An `AsyncSession` is not awaited: its messages are
    inserted before its next savepoint or its commit, which raises the database's errors. Only with an
    `AsyncConnection`, await `publish` and `publish_many`.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        celery: Celery | None = None,
        feed: Callable[[], str] | str | None = None,
    ) -> None:
        if celery is not None:
            check_app("celery", celery)
        self.settings = settings or Settings()
        self.celery = celery
        self.feed = feed
        self.events: dict[str, Any] = {}
        """The declared events, by type: see `event`."""
        self._writer = self._new_writer(celery)

    def _new_writer(self, app: Celery | None) -> Writer:
        nudge = broker_nudge(self.settings, app)
        if self.feed is None:
            return Writer(self.settings, nudge)
        writer: Writer = satellite("feeds").writer(self.settings, self.feed, nudge)
        return writer

    def event(self, event_type: str, model: type) -> None:
        """Declare the payloads of an event type: a Pydantic model, a dataclass, a TypedDict or a msgspec Struct.

        `publish` then takes an instance, or values that fit, stores them as the model's JSON, and raises `InvalidEvent`
        for others. Types that are not declared are not checked. Raises `InvalidArgument` for a class that can't
        describe JSON, or for a type that is declared already.
        """
        declared = event_type in self.events
        check("event_type", event_type, not declared, "is declared already: a type has one model")
        self.events[event_type] = satellite("events").event(event_type, model)

    def _fitted(self, message: Message) -> Message:
        """The message with its payload as the declared event has it."""
        event = self.events.get(message.event_type)
        return message if event is None else replace(message, payload=event.checked(message.payload))

    @overload
    def publish(
        self, session: AsyncConnection, event_type: str, payload: Any, **options: Unpack[Options]
    ) -> Awaitable[UUID]: ...
    @overload
    def publish(self, session: AnySession, event_type: str, payload: Any, **options: Unpack[Options]) -> UUID: ...
    def publish(
        self, session: AnySession | AsyncConnection, event_type: str, payload: Any, **options: Unpack[Options]
    ) -> UUID | Awaitable[UUID]:
        """Insert a message into the session's transaction; it is delivered if and only if that commits.

        `event_type` says what happened, in up to 255 characters. `payload` is stored as JSON;
        str and bytes are stored as they are, as `content_type` (by default plain text or octets). `to`
        names destinations; without it the routes do. Messages with the same `key` arrive in the order in which they
        were written. `headers` travel along as text. The message waits until `deliver_at` (with a time zone), or for
        `delay` seconds. You may choose its `id`: a second call with the same id and content changes nothing.
        `priority` is high, normal or low: which messages without a key go first when many are due.

        Returns the event's id. If it has one destination, this is the id of its message, and consumers recognise a
        repeated delivery by it. If it has several, the first message has this id, the others have ids that are derived
        from it, and all of them carry it as the CloudEvents attribute `eventid`.
        Raises `NotInTransaction`, or a `MessageRefused` before anything is written, or `ReusedId`.
        """
        message = self._fitted(Message(event_type, payload, **options))
        if is_async_connection(session):
            return session.run_sync(lambda connection: self._writer.write(connection, [message])[0])
        return self._writer.write(session, [message])[0]

    @overload
    def publish_many(self, session: AsyncConnection, messages: Iterable[Message]) -> Awaitable[list[UUID]]: ...
    @overload
    def publish_many(self, session: AnySession, messages: Iterable[Message]) -> list[UUID]: ...
    def publish_many(
        self, session: AnySession | AsyncConnection, messages: Iterable[Message]
    ) -> list[UUID] | Awaitable[list[UUID]]:
        """Check all messages, then insert them. Returns their ids."""
        if is_async_connection(session):
            return session.run_sync(self._writer.write, map(self._fitted, each_message(messages)))
        return self._writer.write(session, map(self._fitted, each_message(messages)))

    @overload
    def cancel(self, session: AnyAsync, id: UUID) -> Awaitable[bool]: ...
    @overload
    def cancel(self, session: SyncSession, id: UUID) -> bool: ...
    def cancel(self, session: SyncSession | AnyAsync, id: UUID) -> bool | Awaitable[bool]:
        """Take a committed message back. If the session's transaction commits, it is archived as discarded.

        False: it is sent already, or being sent, or unknown. If it has several destinations, it is taken back from
        those to which it was not sent yet. Await this with an `AsyncSession` or `AsyncConnection`. Raises
        `NotInTransaction`; with a feed always `FeedCantCancel`."""
        check("id", id, isinstance(id, UUID), "must be a UUID, as publish returns it")
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
        *,
        confirm: bool = False,
        **options: Any,
    ) -> AsyncResult:
        """`task.apply_async(args, kwargs, **options)`, sent if and only if the session's transaction commits.

        `task` is a task, a signature (also a chain or group) or the name of a task. The result has the id that the
        task will have. With `countdown` or `eta` the task waits in the table; a task that expires there is discarded.
        With `confirm`, its row stays until the task has run, whatever the destination's setting of that name says.
        Raises `NotInTransaction`, or a `MessageRefused` before anything is written. A class of tasks that stores
        nothing and returns None is refused too.
        """
        check_task(task)
        stored: list[str | None] = []
        with self._capturing(session, confirm=confirm, stored=stored):
            if isinstance(task, str):
                app = self.celery or current_app
                return app.send_task(task, args, kwargs, **options)
            say_if_eager(task.app)
            result = task.apply_async(args, kwargs, **options)
        if result is not None:
            return result
        if not stored:
            raise UncapturableTask(task=task.name, reason=nothing_stored(task))
        return task.app.AsyncResult(stored[-1])

    @contextmanager
    def capture(self, session: AnySession, *, confirm: bool = False) -> Iterator[None]:
        """Inside, every Celery task that this thread or coroutine calls is stored in the session's transaction.

        This works for all apps and all ways to call: `delay`, `apply_async`, `send_task`, chains, groups. The calls
        return and raise the same as ever. With Django, `delay_on_commit` and `transaction.on_commit(task.delay)` are
        stored at the end of the block. A retry of the running task is not stored, because its exception rolls the
        transaction back. `confirm`: as for `apply_async`.
        Raises `NotInTransaction`, and `CaptureLost` if it ends in another context than it began in: see docs/tasks.md.
        """
        with self._capturing(session, confirm=confirm, stored=[]):
            say_if_eager(self.celery or current_app)
            yield

    @contextmanager
    def _capturing(self, session: AnySession, *, confirm: bool, stored: list[str | None]) -> Iterator[None]:
        """`stored` gets the ids of the tasks that are stored."""
        transaction_of(session, "celery.task")
        target = self._target(session, confirm=confirm)

        def store(message: Message) -> object:
            anchor = target.store(message)
            stored.append(message.aggregate_id)
            return anchor

        block = partial(capturing, target._replace(store=store))
        with block(), storing_on_commit(session, block):
            yield

    def direct(self) -> AbstractContextManager[None]:
        """Inside, Celery tasks go straight to the broker, also within `capture`."""
        return direct()

    def install(self, app: Celery, *, capture: Capturing | None = None) -> None:
        """Add the relay's tasks, queues, schedule and checks to an application's Celery app: its workers and its beat
        then run the relay too. The app's own configuration stays as it is.

        `capture` says which session to use: a `scoped_session` (such as Flask-SQLAlchemy's `db.session`), Django's
        `connection`, or a function that returns the session or None. While a transaction is open in it, every task
        that the app sends is stored. Otherwise, and inside `with outbox.direct():`, tasks are sent at once.
        """
        from outbox_tasks.worker.install import install  # an application that only writes does not need it

        check_app("app", app)
        install(app, self.settings)
        app.outbox_of_app = self
        if self.celery is None:
            self.celery = app
            self._writer = self._new_writer(app)
        if capture is not None:
            capture_app(app, lambda: self._target_of(capture))

    def guard(self, app: Celery, mode: Literal["warn", "raise"] = "warn") -> None:
        """Warn of tasks that `app` sends past the outbox, once for each call site, or raise `SentPastOutbox`.

        That is a call outside of `capture` and `direct` while a transaction is open here: of a SQLAlchemy session that
        has changed something, or of Django's `atomic`. Also for eager apps. Tests use "raise".
        """
        check_app("app", app)
        satellite("guard").guard(app, mode)

    def supervise(self, app: Celery) -> None:
        """Supervise the stored tasks of `app` that go to its own broker: the row of each stays until the app's workers
        say that it has run. `install` does it too. A destination with `confirm = "sent"` is left out.
        """
        check_app("app", app)
        satellite("supervised").install(app, self.settings)
        app.outbox_of_app = self

    @overload
    def complete(self, session: AnyAsync, result: Any = None) -> Awaitable[None]: ...
    @overload
    def complete(self, session: SyncSession, result: Any = None) -> None: ...
    def complete(self, session: SyncSession | AnyAsync, result: Any = None) -> Awaitable[None] | None:
        """Say in the session's transaction that the running supervised task is done. If that commits, the task never
        runs again; if not, this has no effect.

        What follows the task (links, the next one of its chain) gets `result`, and is written in the same transaction.
        A second call in the same run has no effect. Await this with an `AsyncSession` or `AsyncConnection`.
        Raises `NotSupervised`, `NotInTransaction`, or `RunLost`: another worker has the task by now, so let this error
        roll the transaction back.
        """
        ended: Awaitable[None] | None = satellite("supervised").complete(session, result)
        return ended

    def _target_of(self, capture: Capturing) -> Target | None:
        session = current(capture)
        return None if session is None else self._target(session)

    def _target(self, session: AnySession, *, confirm: bool = False) -> Target:
        return Target(partial(self._store, session), (lambda *_: True) if confirm else self._confirms)

    def _confirms(self, app: Celery, task: str, queues: Collection[str]) -> bool:
        destination = self.settings.destinations[self.settings.task_destination(task)]
        return any(each.confirms(app, self.settings, destination, task, queues) for each in satellites().values())

    def _store(self, session: AnySession, message: Message) -> object:
        self.write_task(session, message)
        return transaction_of(session, message.event_type).anchor()

    def write_task(self, session: AnySession, message: Message) -> UUID:
        """Write a recorded task; returns the id of its message. Applications call `apply_async`."""
        destination = self.settings.task_destination(message.event_type)
        refuse_unaccepted(message, self.settings.destinations[destination])
        return self._writer.write(session, [replace(message, to=destination)])[0]
