"""Delivery later, or never: due times, cancelling, priorities as an application asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings
from tests.claims import take
from tests.conftest import MakeStore, Rows
from tests.integration.inboxes import ASYNC, SYNC

Cancel = Callable[[str, UUID], bool]


@pytest.fixture
def outbox(settings: Callable[..., Settings]) -> Outbox:
    return Outbox(settings(nudge=False, destinations={name: {"url": "a://b"} for name in ("orders", "mails")}))


@pytest.fixture
def cancel(outbox: Outbox, engine: Engine) -> Cancel:
    """Cancels a message in a transaction of this kind."""

    def sync(kind: str, id: UUID, *, fail: bool = False) -> bool:
        with SYNC[kind](engine) as session:
            return outbox.cancel(session, id)

    async def asynchronous(kind: str, driver: str, id: UUID) -> bool:
        own = create_async_engine(engine.url.set(drivername=f"postgresql+{driver}"))
        try:
            async with ASYNC[kind](own) as session:
                return await outbox.cancel(session, id)
        finally:
            await own.dispose()

    def call(kind: str, id: UUID) -> bool:
        name, _, driver = kind.partition(" ")
        return sync(name, id) if name in SYNC else asyncio.run(asynchronous(name, driver, id))

    return call


def publish(outbox: Outbox, engine: Engine, **options: Any) -> UUID:
    with Session(engine) as session, session.begin():
        return outbox.publish(session, "order.created", {"id": 1}, **{"to": "orders", **options})


class TestCancel:
    @pytest.mark.parametrize("kind", ["Session", "Django", "AsyncSession asyncpg", "AsyncConnection psycopg"])
    def test_takes_back_what_is_not_yet_on_its_way(
        self, kind: str, cancel: Cancel, outbox: Outbox, engine: Engine, rows: Rows
    ) -> None:
        id = publish(outbox, engine, delay=3600)
        assert cancel(kind, id)
        assert not cancel(kind, id)
        [row] = rows.archived()
        assert rows.hot() == []
        assert (row.id, row.state, row.last_error_code) == (id, "discarded", "cancelled")

    def test_at_every_destination(self, cancel: Cancel, outbox: Outbox, engine: Engine, rows: Rows) -> None:
        id = publish(outbox, engine, delay=3600, to=["orders", "mails"])
        assert cancel("Session", id)
        assert {row.destination for row in rows.archived()} == {"orders", "mails"}

    def test_lets_the_next_of_its_key_go(
        self, cancel: Cancel, outbox: Outbox, engine: Engine, new_store: MakeStore
    ) -> None:
        store = new_store()
        head = publish(outbox, engine, key="a", delay=3600)
        publish(outbox, engine, key="a")
        assert take(store, {"orders": 10}) == []
        assert cancel("Session", head)
        assert len(take(store, {"orders": 10})) == 1

    def test_waits_for_nobody(self, outbox: Outbox, engine: Engine, rows: Rows) -> None:
        """A worker that is just about to begin holds the row: it goes on, and the application too."""
        id = publish(outbox, engine)
        with engine.begin() as worker, Session(engine) as session, session.begin():
            worker.execute(text(f"SELECT FROM {rows.tables.messages.schema}.outbox_ready FOR UPDATE"))
            assert not outbox.cancel(session, id)


class TestPriority:
    def test_is_on_the_row(self, outbox: Outbox, engine: Engine, rows: Rows) -> None:
        for own in (False, True):
            for priority in ("high", "normal", "low"):
                publish(outbox, engine, priority=priority, **{"id": uuid4()} if own else {})
        assert [row.priority for row in rows.hot()] == [1, 0, -1] * 2
