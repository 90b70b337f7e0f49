"""The kinds of sessions that an application may have, all driven alike: `begin`, savepoints, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from inspect import isawaitable
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import django
from django.conf import settings as django_settings
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_tasks import Message, Outbox


class Driver:
    """A session or connection of SQLAlchemy. `run` waits for what an asynchronous one returns."""

    def __init__(self, outbox: Outbox, session: Any, run: Callable[[Any], Any] | None = None) -> None:
        self.outbox = outbox
        self.session = session
        self._run = run
        self._savepoints: list[Any] = []

    def _done(self, result: Any) -> Any:
        async def wait() -> Any:
            return await result

        return self._run(wait()) if self._run and isawaitable(result) else result

    @property
    def reusable(self) -> bool:
        """Whether it can be used again after `close`."""
        return not isinstance(self.session, Connection | AsyncConnection)

    def begin(self) -> None:
        self._done(self.session.begin())

    def publish(self, *messages: Message) -> list[UUID]:
        if len(messages) == 1:
            options = {field.name: getattr(messages[0], field.name) for field in fields(Message)}
            return [self._done(self.outbox.publish(self.session, **options))]
        ids: list[UUID] = self._done(self.outbox.publish_many(self.session, messages))
        return ids

    def cancel(self, id: UUID) -> bool:
        return bool(self._done(self.outbox.cancel(self.session, id)))

    def savepoint(self) -> None:
        self._savepoints.append(self._done(self.session.begin_nested()))

    def release(self) -> None:
        self._done(self._savepoints.pop().commit())

    def undo(self) -> None:
        self._done(self._savepoints.pop().rollback())

    def commit(self) -> None:
        self._done(self.session.commit())

    def rollback(self) -> None:
        self._done(self.session.rollback())

    def close(self) -> None:
        self._done(self.session.close())


class DjangoDriver(Driver):
    """Django's connection, in `transaction.atomic()`."""

    def begin(self) -> None:
        self.savepoint()

    def savepoint(self) -> None:
        from django.db import transaction

        atomic = transaction.atomic(using=self.session.alias)
        atomic.__enter__()
        self._savepoints.append(atomic)

    def release(self) -> None:
        self._savepoints.pop().__exit__(None, None, None)

    def undo(self) -> None:
        error = LookupError()
        self._savepoints.pop().__exit__(LookupError, error, None)

    commit, rollback = release, undo

    def close(self) -> None:
        while self._savepoints:
            self.undo()


def configure_django(url: str) -> None:
    """Once a process: Django's settings are global. The outbox's schema is named by the outbox's own settings."""
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()


SYNC: dict[str, Callable[[Engine], Any]] = {
    "Session": Session,
    "scoped_session": lambda engine: scoped_session(sessionmaker(engine)),
    "Connection": Engine.connect,
}
ASYNC: dict[str, Callable[[Engine], Any]] = {
    "AsyncSession": AsyncSession,
    "async_scoped_session": lambda engine: async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1),
    "AsyncConnection": AsyncEngine.connect,
}
KINDS = [
    *SYNC, "AsyncSession asyncpg", "AsyncSession psycopg", "async_scoped_session asyncpg", "AsyncConnection psycopg",
    "Django",
]  # fmt: skip


@contextmanager
def driver(
    kind: str, outbox: Outbox, engine: Engine, django: Any = None, asynchronous: AsyncEngine | None = None
) -> Iterator[Driver]:
    """A session of this kind, and no transaction yet. `django` and `asynchronous`: Django's connection and an engine,
    of another database than the relay's."""
    if kind in SYNC:
        made = Driver(outbox, SYNC[kind](engine))
        try:
            yield made
        finally:
            made.close()
    elif kind == "Django":
        configure_django(engine.url.render_as_string(hide_password=False))
        from django.db import connection

        connection = django or connection
        made = DjangoDriver(outbox, connection)
        try:
            yield made
        finally:
            made.close()
            connection.close()
    else:
        name, _, client = kind.rpartition(" ")
        engine_of_kind = asynchronous or create_async_engine(engine.url.set(drivername=f"postgresql+{client}"))
        with asyncio.Runner() as runner:

            async def opened() -> Any:
                session = ASYNC[name](engine_of_kind)
                return await session if isawaitable(session) else session

            made = Driver(outbox, runner.run(opened()), runner.run)
            try:
                yield made
            finally:
                made.close()
                runner.run(engine_of_kind.dispose())
