"""The inbox in the hands of consumers with every kind of session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from outbox_tasks.writing.inbox import Inbox
from tests.integration.sessions import configure_django

Begin = Callable[[Engine], AbstractContextManager[Any]]
AsyncBegin = Callable[[AsyncEngine], AbstractAsyncContextManager[Any]]


@contextmanager
def in_django(engine: Engine) -> Iterator[Any]:
    configure_django(engine.url.render_as_string(hide_password=False))
    from django.db import connection, transaction

    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()  # this thread's


SYNC: dict[str, Begin] = {
    "Session": lambda engine: sessionmaker(engine).begin(),
    "Connection": Engine.begin,
    "Django": in_django,
}
ASYNC: dict[str, AsyncBegin] = {
    "AsyncSession": lambda engine: async_sessionmaker(engine).begin(),
    "AsyncConnection": AsyncEngine.begin,
}


class Inboxes:
    """The inbox of a test, in its schema, and the transactions of consumers of every kind."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine = engine
        self.schema = schema
        self.billing = Inbox("billing", schema=schema)

    def take(self, kind: str, message_id: Any, *, fail: bool = False) -> bool:
        """Take a message in a transaction of this kind, in any thread; or roll it back by an error."""
        if kind in SYNC:
            with SYNC[kind](self.engine) as session:
                first = self.billing.first(session, message_id)
                if fail:
                    raise LookupError
                return first
        name, driver = kind.split()
        return asyncio.run(self._take(name, driver, message_id, fail))

    async def _take(self, kind: str, driver: str, message_id: Any, fail: bool) -> bool:
        async with self.asynchronous(driver) as engine, ASYNC[kind](engine) as session:
            first = await self.billing.first(session, message_id)
            if fail:
                raise LookupError
            return first

    @asynccontextmanager
    async def asynchronous(self, driver: str) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.engine.url.set(drivername=f"postgresql+{driver}"))
        try:
            yield engine
        finally:
            await engine.dispose()

    def marks(self) -> list[tuple[str, str]]:
        """Consumer and message id of every mark."""
        with self.engine.connect() as connection:
            found = connection.execute(text(f"SELECT consumer, message_id FROM {self.schema}.outbox_inbox ORDER BY 2"))
            return [(row[0], row[1]) for row in found]

    def waiting(self) -> int:
        """How many marks wait for another transaction."""
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :mark "
            "AND state = 'active'"
        )
        with self.engine.connect() as connection:
            return int(connection.scalar(text(query), {"mark": f'%INTO "{self.schema}".outbox_inbox%'}) or 0)
