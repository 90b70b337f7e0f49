"""The kinds of sessions that an application may have, all driven alike: `begin`, savepoints, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import django
from django.conf import settings as django_settings
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlmodel import Session as SQLModelSession

from outbox_tasks import Message, Outbox
from outbox_tasks.database.schema import tables


class Base(DeclarativeBase):
    """Mapped classes of an application, one of them:"""


class Order(Base):
    """What an application has."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Driver:
    """A synchronous SQLAlchemy session or connection."""

    def __init__(self, outbox: Outbox, session: Any) -> None:
        self.outbox = outbox
        self.session = session
        self._savepoints: list[Any] = []

    @property
    def reusable(self) -> bool:
        """Whether it can be used again after `close`."""
        return not isinstance(self.session, Connection | AsyncConnection)

    def begin(self) -> None:
        self.session.begin()

    def publish(self, *messages: Message) -> list[UUID]:
        return self.outbox.publish_many(self.session, messages)

    def cancel(self, id: UUID) -> bool:
        return self.outbox.cancel(self.session, id)

    def savepoint(self) -> None:
        self._savepoints.append(self.session.begin_nested())

    def release(self) -> None:
        self._savepoints.pop().commit()

    def undo(self) -> None:
        self._savepoints.pop().rollback()

    def commit(self) -> None:
        self.session.commit()

    def rollback(self) -> None:
        self.session.rollback()

    def close(self) -> None:
        self.session.close()


class AsyncDriver(Driver):
    """An `AsyncSession`: only what talks to the database is awaited."""

    def __init__(self, outbox: Outbox, session: Any, run: Callable[[Any], Any]) -> None:
        super().__init__(outbox, session)
        self._run = run

    def begin(self) -> None:
        async def begin() -> None:
            await self.session.begin()

        self._run(begin())

    def cancel(self, id: UUID) -> bool:
        async def cancel() -> bool:
            taken: bool = await self.outbox.cancel(self.session, id)
            return taken

        taken: bool = self._run(cancel())
        return taken

    def savepoint(self) -> None:
        async def begin() -> Any:
            return await self.session.begin_nested()

        self._savepoints.append(self._run(begin()))

    def release(self) -> None:
        self._run(self._savepoints.pop().commit())

    def undo(self) -> None:
        self._run(self._savepoints.pop().rollback())

    def commit(self) -> None:
        self._run(self.session.commit())

    def rollback(self) -> None:
        self._run(self.session.rollback())

    def close(self) -> None:
        self._run(self.session.close())


class AsyncConnectionDriver(AsyncDriver):
    """An `AsyncConnection`: publishing is awaited too."""

    def publish(self, *messages: Message) -> list[UUID]:
        async def publish() -> list[UUID]:
            made: list[UUID] = await self.outbox.publish_many(self.session, messages)
            return made

        made: list[UUID] = self._run(publish())
        return made


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


SYNC = ["Session", "scoped_session", "SQLModel", "two binds", "Connection"]
ASYNC = ["AsyncSession asyncpg", "AsyncSession psycopg", "async_scoped_session asyncpg", "AsyncConnection psycopg"]
KINDS = [*SYNC, *ASYNC, "Django"]


@contextmanager
def driver(
    kind: str,
    outbox: Outbox,
    engine: Engine,
    table: Table | None = None,
    django: Any = None,
    asynchronous: AsyncEngine | None = None,
) -> Iterator[Driver]:
    """A session of this kind, and no transaction yet. `table`: where its messages go. `django` and `asynchronous`:
    Django's connection and an engine, of another database than the relay's."""
    if kind in SYNC:
        table = tables(outbox.settings.database_schema).messages if table is None else table
        made = Driver(outbox, _sync(kind, engine, table))
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
        with asyncio.Runner() as runner:
            name, _, client = kind.rpartition(" ")
            made_now = asynchronous or create_async_engine(engine.url.set(drivername=f"postgresql+{client}"))
            yield from _asynchronous(name, outbox, made_now, runner.run)


def _sync(kind: str, engine: Engine, table: Table) -> Any:
    match kind:
        case "Session":
            return Session(engine)
        case "scoped_session":
            return scoped_session(sessionmaker(engine))
        case "SQLModel":
            return SQLModelSession(engine)
        case "two binds":
            other = engine.execution_options()
            return Session(binds={Base: other, table: engine})
        case _:
            return engine.connect()


def _asynchronous(name: str, outbox: Outbox, asynchronous: AsyncEngine, run: Callable[[Any], Any]) -> Iterator[Driver]:
    made: AsyncDriver
    match name:
        case "AsyncSession":
            made = AsyncDriver(outbox, AsyncSession(asynchronous), run)
        case "async_scoped_session":
            registry = async_scoped_session(async_sessionmaker(asynchronous), scopefunc=lambda: 1)
            made = AsyncDriver(outbox, registry, run)
        case _:
            made = AsyncConnectionDriver(outbox, run(_connected(asynchronous)), run)
    try:
        yield made
    finally:
        made.close()
        run(asynchronous.dispose())


async def _connected(engine: Any) -> Any:
    return await engine.connect()
