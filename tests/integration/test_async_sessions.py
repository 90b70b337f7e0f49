"""`AsyncSession`: whatever commits what the application wrote also writes what it published, or says that it can't."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Mapper, registry

from outbox_tasks import Outbox
from outbox_tasks.errors import PublishedTooLate
from outbox_tasks.model import uuid7
from tests.conftest import Rows, eventually
from tests.integration.test_sessions import rows, schema

__all__ = ["rows", "schema"]

Test = Callable[[AsyncEngine], Awaitable[Any]]


@pytest.fixture
def run(engine: Engine) -> Callable[[Test], Any]:
    """Runs a function with an engine. Other tests try sessions with psycopg."""

    async def whole(test: Test) -> Any:
        made = create_async_engine(engine.url.set(drivername="postgresql+asyncpg"))
        try:
            return await test(made)
        finally:
            await made.dispose()

    return lambda test: asyncio.run(whole(test))


class Orders:
    """A mapped class of the application, and what is in its table."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self.engine = engine
        self.table = Table("orders", MetaData(schema=schema), Column("id", Integer, primary_key=True))
        self.table.create(engine)
        self.registry = registry()
        self.new: Any = type("Order", (), {})
        self.mapper: Mapper[Any] = self.registry.map_imperatively(self.new, self.table)

    def __len__(self) -> int:
        with self.engine.connect() as connection:
            return len(connection.execute(select(self.table.c.id)).all())


@pytest.fixture
def orders(engine: Engine, rows: Rows, schema: str) -> Iterator[Orders]:
    made = Orders(engine, schema)
    yield made
    made.registry.dispose()
    made.table.drop(engine)


def ids(rows: Rows) -> list[UUID]:
    return [row.id for row in rows.hot()]


MOMENTS = ["before_flush", "after_flush_postexec", "before_commit", "after_insert"]


def test_messages_of_a_listener_are_committed_with_the_session(
    run: Any, outbox: Outbox, rows: Rows, orders: Orders
) -> None:
    async def commit(engine: AsyncEngine, moment: str) -> list[UUID]:
        async with AsyncSession(engine) as session:
            published: list[UUID] = []

            def listener(*_: Any) -> None:
                if not published:
                    published.append(outbox.publish(session, moment, {}, key="k"))

            listening = orders.mapper if moment == "after_insert" else session.sync_session, moment, listener
            event.listen(*listening)
            await session.begin()
            first = outbox.publish(session, "first", {}, key="k")
            session.add(orders.new())
            async with session.begin_nested():
                session.add(orders.new())
            await session.commit()
            event.remove(*listening)
            assert published, moment
            return [first, *published]

    async def test(engine: AsyncEngine) -> list[UUID]:
        return [id for moment in MOMENTS for id in await commit(engine, moment)]

    assert run(test) == ids(rows)
    assert len(orders) == 2 * len(MOMENTS)


ENDS = ["commit", "rollback", "close", "nothing"]
"""What becomes of the session."""


@pytest.mark.parametrize("mode", ["conditional_savepoint", "control_fully", "create_savepoint"])
def test_a_session_in_a_transaction_of_its_connection_publishes_into_it(
    run: Any, outbox: Outbox, rows: Rows, orders: Orders, mode: Any
) -> None:
    """What it published is there if and only if what it changed is."""

    async def use(connection: AsyncConnection, flush: bool, end: str) -> AsyncSession:
        session = AsyncSession(connection, join_transaction_mode=mode)
        session.add(orders.new())
        if flush:
            await session.flush()
        outbox.publish(session, "order.created", {})
        if not flush:
            await session.flush()
        if end != "nothing":
            await getattr(session, end)()
        return session

    async def test(engine: AsyncEngine) -> None:
        for flush, end, outer in product((True, False), ENDS, ("commit", "rollback")):
            async with engine.connect() as connection:
                transaction = await connection.begin()
                kept = await use(connection, flush, end)
                if transaction.is_active:
                    await getattr(transaction, outer)()
                assert len(rows.hot()) == len(orders), (flush, end, outer)
                del kept

    run(test)
    assert len(orders) > 0


def test_the_sessions_connection_may_end_each_transaction(run: Any, outbox: Outbox, rows: Rows) -> None:
    async def test(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            connection = await session.connection()
            for end in ("commit", "rollback", "commit"):
                await session.execute(text("SELECT 1"))
                outbox.publish(session, end, {})
                await getattr(connection, end)()

    run(test)
    assert [row.event_type for row in rows.hot()] == ["commit", "commit"]


def test_the_end_of_another_engines_connection_is_not_that_of_the_messages(
    run: Any, outbox: Outbox, rows: Rows, orders: Orders
) -> None:
    async def test(engine: AsyncEngine) -> None:
        elsewhere = create_async_engine(engine.url)
        async with AsyncSession(engine, binds={orders.new: elsewhere}) as session:
            session.add(orders.new())
            await session.flush()
            outbox.publish(session, "order.created", {})
            other = await session.connection(bind_arguments={"mapper": orders.mapper})
            await other.commit()
        assert (rows.hot(), len(orders)) == ([], 1)
        async with elsewhere.connect() as other, engine.connect() as own:
            for connection in (other, own):
                await connection.begin()
            session = AsyncSession(own, binds={orders.new: other})
            session.add(orders.new())
            await session.flush()
            await session.connection()
            outbox.publish(session, "order.created", {})
            await session.close()  # case 4
            await own.commit()
        await elsewhere.dispose()

    run(test)
    assert (len(rows.hot()), len(orders)) == (1, 1)


def test_messages_with_and_without_an_id_of_the_application_wait_together(run: Any, outbox: Outbox, rows: Rows) -> None:
    """They are written by two statements, in the order of the calls. One that waits can be cancelled."""

    async def test(engine: AsyncEngine) -> list[UUID]:
        async with AsyncSession(engine) as session, session.begin():
            made = [outbox.publish(session, "a", n, id=uuid7() if n % 2 else None) for n in range(5)]
            assert await outbox.cancel(session, made[-1])
            return made[:-1]

    assert run(test) == ids(rows)
    assert [row.last_error_code for row in rows.archived()] == ["cancelled"]


class Gate:
    """While it is shut, what goes through it waits."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self._engine, self._schema = engine, schema
        self._name = f"hashtext('{schema}')"

    def build(self, table: str, when: str) -> None:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE FUNCTION {self._schema}.gate() RETURNS trigger LANGUAGE plpgsql "
                f"AS $$BEGIN PERFORM pg_advisory_xact_lock_shared({self._name}); RETURN NEW; END$$;"
                f"CREATE {when.format(f'INSERT ON {self._schema}.{table}')} FOR EACH ROW "
                f"EXECUTE FUNCTION {self._schema}.gate()"
            )

    @contextmanager
    def shut(self) -> Iterator[None]:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({self._name})")
            yield
        eventually(lambda: not self._busy("granted"))

    async def is_reached(self) -> None:
        await asyncio.to_thread(eventually, lambda: self._busy("NOT granted"))

    def _busy(self, how: str) -> bool:
        query = (
            f"SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = {self._name}::bigint & 4294967295 AND {how}"
        )
        with self._engine.connect() as connection:
            return connection.execute(text(f"SELECT EXISTS ({query})")).scalar_one()


@pytest.fixture
def gate(engine: Engine, schema: str, orders: Orders) -> Iterator[Gate]:
    yield Gate(engine, schema)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP FUNCTION {schema}.gate CASCADE")


BEFORE, AT_THE_COMMIT = "TRIGGER gate BEFORE {}", "CONSTRAINT TRIGGER gate AFTER {} DEFERRABLE INITIALLY DEFERRED"


def test_a_message_published_during_the_commit_raises_published_too_late(
    run: Any, outbox: Outbox, rows: Rows, orders: Orders, gate: Gate
) -> None:
    gate.build("orders", AT_THE_COMMIT)

    async def test(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(orders.new())
            outbox.publish(session, "in.time", {})
            with gate.shut():
                commit = asyncio.create_task(session.commit())
                await gate.is_reached()
                outbox.publish(session, "too.late", {})
            await commit

    with pytest.raises(PublishedTooLate, match=r"1 messages were not written, the first of them 'too\.late'"):
        run(test)
    assert ([row.event_type for row in rows.hot()], len(orders)) == (["in.time"], 1)


@pytest.mark.parametrize(
    ("table", "when"),
    [("outbox_messages", BEFORE), ("orders", BEFORE), ("orders", AT_THE_COMMIT)],
    ids=["as it writes the message", "as it flushes", "as it commits"],
)
def test_a_cancelled_commit_leaves_the_order_and_its_message_or_neither(
    run: Any, outbox: Outbox, rows: Rows, orders: Orders, gate: Gate, table: str, when: str
) -> None:
    gate.build(table, when)

    async def test(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            session.add(orders.new())
            outbox.publish(session, "order.created", {})
            with gate.shut():
                commit = asyncio.create_task(session.commit())
                await gate.is_reached()
                commit.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await commit
        assert len(rows.hot()) == len(orders)
        before = len(orders)
        async with AsyncSession(engine) as session:
            session.add(orders.new())
            outbox.publish(session, "order.created", {})
            await session.commit()
        assert (len(rows.hot()), len(orders)) == (before + 1, before + 1)

    run(test)
