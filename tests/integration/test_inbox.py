"""The inbox in PostgreSQL, in the transactions of every kind of session. `test_inbox_everywhere`: in each database."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.exceptions import Retry
from psycopg import errors as postgres
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_tasks.errors import SchemaMissing
from tests.conftest import Rows, eventually
from tests.integration.inboxes import Inboxes
from tests.integration.sessions import configure_django


@pytest.fixture
def inboxes(rows: Rows, engine: Engine, schema: str) -> Inboxes:
    return Inboxes(engine, schema)


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_in_stricter_isolation_postgresql_refuses_a_simultaneous_duplicate(
    inboxes: Inboxes, others: ThreadPoolExecutor
) -> None:
    strict = Inboxes(inboxes.engine.execution_options(isolation_level="REPEATABLE READ"), inboxes.schema)
    with inboxes.engine.connect() as connection:
        connection.begin()
        assert inboxes.billing.first(connection, "1")
        second = others.submit(strict.take, "Session", "1")
        eventually(inboxes.waiting)
        connection.commit()
        with pytest.raises(OperationalError) as caught:
            second.result(10)
    assert isinstance(caught.value.orig, postgres.SerializationFailure)
    assert strict.take("Session", "1") is False


@pytest.mark.parametrize("kind", ["Session", "Django", "AsyncConnection asyncpg"])
def test_without_the_table_schema_missing_is_raised(engine: Engine, kind: str) -> None:
    with pytest.raises(SchemaMissing, match=r"not in schema 'outbox_nowhere'.*outbox-tasks init"):
        Inboxes(engine, "outbox_nowhere").take(kind, "1")


class Effects:
    """A table of effects, one row for each time that one was made."""

    def __init__(self, inboxes: Inboxes) -> None:
        self.engine = inboxes.engine
        self.table = f"{inboxes.schema}.effects"
        self.insert = text(f"INSERT INTO {self.table} VALUES (:n)")
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.table} (n integer)"))

    def made(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.scalars(text(f"SELECT n FROM {self.table} ORDER BY n")))


@pytest.fixture
def effects(inboxes: Inboxes) -> Effects:
    return Effects(inboxes)


@contextmanager
def by_hand(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


def django_connection(engine: Engine) -> Any:
    configure_django(engine.url.render_as_string(hide_password=False))
    from django.db import connection

    return connection


BEGINS: dict[str, Callable[[Engine], Any]] = {
    "sessionmaker": sessionmaker,
    "Engine": lambda engine: engine,
    "scoped_session": lambda engine: scoped_session(sessionmaker(engine)),
    "a method": lambda engine: engine.begin,
    "a function": lambda engine: lambda: by_hand(engine),
    "Django": django_connection,
}
ASYNC_BEGINS: dict[str, Callable[[AsyncEngine], Any]] = {
    "async_sessionmaker": async_sessionmaker,
    "AsyncEngine": lambda engine: engine,
    "a method": lambda engine: engine.begin,
}


def by_order(order: int, **_: Any) -> str:
    return f"order:{order}"


class TestOnce:
    @pytest.mark.parametrize("begin", BEGINS)
    def test_the_effect_and_the_mark_are_committed_together(
        self, inboxes: Inboxes, effects: Effects, begin: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        @inboxes.billing.once(BEGINS[begin](inboxes.engine), message_id=by_order)
        def charge(session: Any, order: int, *, fail: bool = False) -> str:
            if begin == "Django":
                with session.cursor() as cursor:
                    cursor.execute(f"INSERT INTO {effects.table} VALUES (%s)", [order])
            else:
                session.execute(effects.insert, {"n": order})
            if fail:
                raise Retry("an exception of Celery's rolls back, too")
            return "charged"

        with pytest.raises(Retry):
            charge(7, fail=True)
        assert (effects.made(), inboxes.marks()) == ([], [])
        with caplog.at_level(logging.INFO, "outbox_tasks.writing.inbox"):
            assert [charge(7), charge(7), charge(order=8)] == ["charged", None, "charged"]
        assert (effects.made(), inboxes.marks()) == ([7, 8], [("billing", "order:7"), ("billing", "order:8")])
        assert caplog.messages == ["billing has taken message order:7 before; it is a duplicate and was skipped"]
        if begin == "Django":
            django_connection(inboxes.engine).close()

    @pytest.mark.parametrize("begin", ASYNC_BEGINS)
    def test_an_async_effect_and_the_mark_are_committed_together(
        self, inboxes: Inboxes, effects: Effects, begin: str
    ) -> None:
        async def work() -> list[str | None]:
            async with inboxes.asynchronous("asyncpg") as engine:

                @inboxes.billing.once(ASYNC_BEGINS[begin](engine), message_id=by_order)
                async def charge(session: AsyncSession, order: int, *, fail: bool = False) -> str:
                    await session.execute(effects.insert, {"n": order})
                    if fail:
                        raise LookupError
                    return "charged"

                with pytest.raises(LookupError):
                    await charge(7, fail=True)
                assert (effects.made(), inboxes.marks()) == ([], [])
                return [await charge(7), await charge(7)]

        assert asyncio.run(work()) == ["charged", None]
        assert (effects.made(), inboxes.marks()) == ([7], [("billing", "order:7")])

    def test_the_mark_is_made_before_the_effect(self, inboxes: Inboxes, others: ThreadPoolExecutor) -> None:
        """So that the second of two waits before it has done anything."""
        inside, leave = threading.Semaphore(0), threading.Event()

        @inboxes.billing.once(inboxes.engine, message_id=by_order)
        def charge(order: int) -> str:
            inside.release()
            assert leave.wait(10)
            return "charged"

        both: list[Future[str | None]] = [others.submit(charge, 7) for _ in range(2)]
        try:
            eventually(inboxes.waiting)
            assert inside.acquire(timeout=10)
            assert not inside.acquire(blocking=False)
        finally:
            leave.set()
        assert {each.result(10) for each in both} == {"charged", None}

    @pytest.mark.parametrize("where", ["first", "second", "last", "by name", "absent"])
    def test_the_session_goes_to_its_place(self, inboxes: Inboxes, where: str) -> None:
        def first(session: Any, a: Any, b: Any = 0, *more: Any, **named: Any) -> Any:
            return session, a, b, more, named

        def second(a: Any, session: Any, b: Any = 0, *more: Any, **named: Any) -> Any:
            return session, a, b, more, named

        def last(a: Any, b: Any = 0, session: Any = None) -> Any:
            return session, a, b, (), {}

        def by_name(a: Any, b: Any = 0, *more: Any, session: Any, **named: Any) -> Any:
            return session, a, b, more, named

        def absent(a: Any, b: Any = 0, *more: Any, **named: Any) -> Any:
            return None, a, b, more, named

        kinds: list[Callable[..., Any]] = [first, second, last, by_name, absent]
        [function] = [kind for kind in kinds if kind.__name__ == where.replace(" ", "_")]
        call = inboxes.billing.once(sessionmaker(inboxes.engine), message_id=lambda *_, **__: uuid4())(function)
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((1,), {}), ((1, 2), {}), ((1,), {"b": 2})]
        if where != "last":
            calls += [((1, 2, 3), {"c": 4}), ((), {"a": 1, "b": 2})]
        for args, named in calls:
            session, *got = call(*args, **named)
            assert (session is None) == (where == "absent")
            assert session is None or isinstance(session, Session)
            _, *expected = absent(*args, **named)
            assert got == expected

    def test_a_task_is_marked_by_its_own_id(self, inboxes: Inboxes, effects: Effects) -> None:
        app = Celery(set_as_current=False)

        @app.task(bind=True, shared=False)
        @inboxes.billing.once(sessionmaker(inboxes.engine))
        def charge(self: Any, session: Session, order: int) -> str:
            session.execute(effects.insert, {"n": order})
            return str(self.request.id)

        id = str(uuid4())
        assert [charge.apply((7,), task_id=id).get() for _ in range(2)] == [id, None]
        assert charge.apply(kwargs={"order": 8}, task_id="another").get() == "another"
        assert (effects.made(), set(inboxes.marks())) == ([7, 8], {("billing", id), ("billing", "another")})
