"""The inbox in each kind of database: once, however often and however simultaneously it comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from outbox_tasks.migrations import upgrade_feed
from outbox_tasks.writing.inbox import Inbox
from tests.conftest import eventually
from tests.feeds.places import DIALECTS, Place, own_place

SYNC: dict[str, Callable[[Place], AbstractContextManager[Any]]] = {
    "Session": lambda place: sessionmaker(place.engine).begin(),
    "Connection": lambda place: place.engine.begin(),
    "Django": lambda place: in_django(place),
}
ASYNC: dict[str, Callable[[AsyncEngine], AbstractAsyncContextManager[Any]]] = {
    "AsyncSession": lambda engine: async_sessionmaker(engine).begin(),
    "AsyncConnection": AsyncEngine.begin,
}

BILLING = Inbox("billing")


@pytest.fixture(scope="module", params=DIALECTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with own_place(request.param, tmp_path_factory.mktemp("place"), request) as place:
        yield place


@pytest.fixture
def place(made: Place) -> Place:
    made.clear()
    return made


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@contextmanager
def in_django(place: Place) -> Iterator[Any]:
    from django.db import transaction

    connection = place.django()
    try:
        with transaction.atomic(using=connection.alias):
            yield connection
    finally:
        connection.close()  # this thread's


def take(place: Place, kind: str, message_id: Any, *, fail: bool = False) -> bool:
    """Take a message in a transaction of this kind, in any thread; or roll it back by an error."""
    if kind in ASYNC:
        return asyncio.run(take_async(place, kind, message_id, fail))
    with SYNC[kind](place) as session:
        first = BILLING.first(session, message_id)
        if fail:
            raise LookupError
        return first


async def take_async(place: Place, kind: str, message_id: Any, fail: bool) -> bool:
    engine = place.asynchronous()
    try:
        async with ASYNC[kind](engine) as session:
            first = await BILLING.first(session, message_id)
            if fail:
                raise LookupError
            return first
    finally:
        await engine.dispose()


def marks(place: Place) -> list[tuple[str, str]]:
    with place.reader.connect() as connection:
        found = connection.execute(text("SELECT consumer, message_id FROM outbox_inbox ORDER BY 2")).all()
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in found]  # type: ignore[misc]


WAITS = {
    "postgresql": "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted "
    "AND datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def is_waiting(place: Place, second: Future[bool]) -> bool:
    """Whether its transaction waits for another one. SQLite doesn't tell."""
    if place.dialect == "sqlite":
        return second.running()
    with place.engine.connect() as connection:
        return bool(connection.scalar(text(WAITS.get(place.dialect, WAITS["mysql"]))))


class TestFirst:
    @pytest.mark.parametrize("kind", [*SYNC, *ASYNC])
    def test_the_first_mark_is_true_and_a_duplicate_is_false(self, place: Place, kind: str) -> None:
        id = uuid4()
        with pytest.raises(LookupError):
            take(place, kind, id, fail=True)
        assert marks(place) == [], "a rollback takes the mark back"
        assert [take(place, kind, message) for message in (id, id, str(id), "other")] == [True, False, False, True]
        assert set(marks(place)) == {("billing", str(id)), ("billing", "other")}

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_the_second_of_two_at_the_same_time_waits_for_the_first(
        self, place: Place, others: ThreadPoolExecutor, end: str
    ) -> None:
        with place.engine.connect() as connection:
            connection.begin()
            assert BILLING.first(connection, "1")
            second = others.submit(take, place, "Connection", "1")
            eventually(lambda: is_waiting(place, second))
            assert not second.done()
            getattr(connection, end)()
        assert second.result(30) is (end == "rollback")
        assert marks(place) == [("billing", "1")]

    def test_one_of_many_that_roll_back_now_and_then_is_the_first(
        self, place: Place, others: ThreadPoolExecutor
    ) -> None:
        """MySQL ends some of them, because each waits for the other. `once` runs these again."""
        effects: list[str] = []

        @BILLING.once(place.engine, message_id=lambda id, number: id)
        def effect(id: str, number: int) -> None:
            time.sleep(0.01)  # meanwhile others begin to wait for this one
            if number % 3 == 0:
                raise LookupError
            effects.append(id)

        start = threading.Barrier(8)

        def race(number: int) -> None:
            start.wait(10)
            for n in range(30):
                with suppress(LookupError):
                    effect(str(n), number)

        list(others.map(race, range(8)))
        assert sorted(effects, key=int) == [str(n) for n in range(30)]

    def test_ids_that_a_collation_could_take_for_one_are_two(self, place: Place) -> None:
        with place.engine.begin() as connection:
            assert all(BILLING.first(connection, id) for id in ("a", "A", "a ", "á", "a\t"))

    def test_the_longest_texts_fit_into_the_index(self, place: Place) -> None:
        inbox = Inbox("\U0001f4e6" * 255)
        with place.engine.begin() as connection:
            assert inbox.first(connection, "\U0001f4ee" * 255)
            assert not inbox.first(connection, "\U0001f4ee" * 255)


def test_once_runs_a_function_or_coroutine_once(place: Place) -> None:
    ran: list[str] = []

    @BILLING.once(place.django(), message_id=lambda id: id)
    def charge(id: str) -> None:
        ran.append(id)

    async def charge_twice() -> None:
        engine = place.asynchronous()

        @BILLING.once(async_sessionmaker(engine), message_id=lambda id: id)
        async def charge(session: AsyncSession, id: str) -> None:
            ran.append(id)

        await charge("2")
        await charge("2")
        await engine.dispose()

    charge("1")
    charge("1")
    place.django().close()
    asyncio.run(charge_twice())
    assert ran == ["1", "2"]


@pytest.mark.parametrize("made", [dialect for dialect in DIALECTS if dialect in ("mariadb", "mysql")], indirect=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_in_each_isolation_level_of_mysql_a_duplicate_is_seen_behind_an_older_snapshot(
    place: Place, level: Any
) -> None:
    with place.engine.connect().execution_options(isolation_level=level) as connection, connection.begin():
        assert connection.scalar(text("SELECT count(*) FROM outbox_feed")) == 0  # takes the snapshot
        assert take(place, "Session", "1")
        assert not BILLING.first(connection, "1")
        assert BILLING.first(connection, "2")


@pytest.mark.parametrize("made", [dialect for dialect in DIALECTS if dialect != "postgresql"], indirect=True)
def test_it_can_be_in_a_schema_of_its_own(place: Place) -> None:
    schema = "main" if place.dialect == "sqlite" else place.engine.url.database
    elsewhere = place.engine if place.dialect == "sqlite" else create_engine(place.engine.url.set(database="mysql"))
    with elsewhere.begin() as connection:
        upgrade_feed(connection, schema)
        assert Inbox("billing", schema=schema).first(connection, "1")
        assert not Inbox("billing", schema=schema).first(connection, "1")
    assert marks(place) == [("billing", "1")]
    if elsewhere is not place.engine:
        elsewhere.dispose()


@pytest.mark.parametrize("made", ["sqlite"], indirect=True)
def test_in_sqlite_as_python_begins_its_transactions_one_of_many_at_the_same_time_is_the_first(
    place: Place, others: ThreadPoolExecutor
) -> None:
    """Without the events that docs/feeds.md advises."""
    engine, start = create_engine(place.engine.url, connect_args={"timeout": 20}), threading.Barrier(8)

    def race(_: int) -> list[bool]:
        start.wait(10)
        answers = []
        for n in range(30):
            with Session(engine) as session, session.begin():
                answers.append(BILLING.first(session, str(n)))
        return answers

    answers = list(others.map(race, range(8)))
    assert [sum(each) for each in zip(*answers, strict=True)] == [1] * 30
    engine.dispose()
