"""Blocks of `capture` whose code runs in another context than their `with`: its tasks are stored or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import Context
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from fastapi import Depends, FastAPI
from httpx import ASGITransport, AsyncClient
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.errors import CaptureLost
from tests.conftest import MakeSettings, Rows


def _mail() -> None: ...


class Shop:
    """An application at a real broker, and ways to open a block."""

    def __init__(self, outbox: Outbox, engine: Engine, app: Celery, client: redis.Redis) -> None:
        self.outbox, self.engine, self.app, self._client = outbox, engine, app, client
        self._queue = f"outbox_test_{uuid4().hex[:8]}"
        app.conf.task_default_queue = self._queue
        self.mail = app.task(name="shop.mail", shared=False)(_mail)

    @property
    def sent(self) -> int:
        return int(self._client.llen(self._queue))  # type: ignore[arg-type]

    def clear(self) -> None:
        self._client.delete(self._queue)

    def plain(self) -> Iterator[Session]:
        with Session(self.engine) as session, session.begin(), self.outbox.capture(session):
            yield session

    def with_a_task(self) -> Iterator[None]:
        with contextmanager(self.plain)():
            self.mail.delay()
            yield

    def nested(self) -> Iterator[Session]:
        with contextmanager(self.plain)() as session:
            yield session

    def direct(self) -> Iterator[None]:
        with self.outbox.direct():
            yield

    def done(self) -> Iterator[Session]:
        """What it stores itself is stored."""
        with Session(self.engine) as session, session.begin():
            with self.outbox.capture(session):
                self.mail.delay()
            self.outbox.delay(session, self.mail)
            yield session

    async def coroutine(self) -> AsyncIterator[Session]:
        with contextmanager(self.plain)() as session:
            yield session


@pytest.fixture
def shop(settings: MakeSettings, rows: Rows, engine: Engine, redis_url: str) -> Iterator[Shop]:
    app = Celery("shop", broker=redis_url, set_as_current=False)
    outbox = Outbox(settings(nudge=False, destinations={"tasks": {"url": "celery://"}}), celery=app)
    with redis.Redis.from_url(redis_url) as client:
        made = Shop(outbox, engine, app, client)
        yield made
        made.clear()


class TestFastApi:
    def get(self, shop: Shop, dependency: Any) -> int:
        """The status of an answer whose endpoint calls a task."""
        api = FastAPI()

        @api.get("/", dependencies=[Depends(dependency)])
        def answer() -> None:
            shop.mail.delay()

        async def get() -> int:
            transport = ASGITransport(api, raise_app_exceptions=False)
            async with AsyncClient(transport=transport, base_url="http://shop") as client:
                return (await client.get("/")).status_code

        return asyncio.run(get())

    @pytest.mark.parametrize("dependency", ["plain", "nested"])
    def test_in_a_dependency_that_is_not_async_calls_are_refused(self, shop: Shop, rows: Rows, dependency: str) -> None:
        assert (self.get(shop, getattr(shop, dependency)), shop.sent, rows.hot()) == (500, 0, [])

    def test_a_dependency_with_direct_is_refused_where_its_task_would_be_stored(self, shop: Shop, rows: Rows) -> None:
        assert (self.get(shop, shop.direct), shop.sent) == (200, 1)
        with Session(shop.engine) as session, session.begin():
            shop.outbox.install(shop.app, capture=lambda: session)
            assert (self.get(shop, shop.direct), shop.sent) == (500, 1)
        assert rows.hot() == []

    def test_in_an_async_dependency_they_are_stored(self, shop: Shop, rows: Rows) -> None:
        assert (self.get(shop, shop.coroutine), shop.sent, len(rows.hot())) == (200, 0, 1)

    def test_a_block_that_ends_before_the_yield_holds_up_nobody(self, shop: Shop, rows: Rows) -> None:
        assert (self.get(shop, shop.done), shop.sent, len(rows.hot())) == (200, 1, 2)


class TestThreads:
    def test_the_refusal_names_the_generator(self, shop: Shop) -> None:
        manager = contextmanager(shop.plain)()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(manager.__enter__).result()
            with pytest.raises(
                CaptureLost, match=r"mail' was refused\. .*Shop\.plain \(.*test_capture_contexts.*async def"
            ):
                shop.mail.delay()
            with Session(shop.engine) as session, session.begin(), shop.outbox.capture(session):
                shop.mail.delay()  # this one is certain
                session.rollback()
            pool.submit(manager.__exit__, None, None, None).result()
        shop.mail.delay()
        assert shop.sent == 1

    def test_a_copy_of_the_context_is_inside(self, shop: Shop, rows: Rows) -> None:
        async def program() -> None:
            with contextmanager(shop.plain)():
                await asyncio.to_thread(shop.mail.delay)

        asyncio.run(program())
        assert (shop.sent, len(rows.hot())) == (0, 1)

    def test_generators_that_the_applications_code_runs_are_inside(self, shop: Shop, rows: Rows) -> None:
        def program() -> None:
            with ExitStack() as stack:
                stack.enter_context(contextmanager(shop.nested)())
                shop.mail.delay()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(program).result()
        assert (shop.sent, len(rows.hot())) == (0, 1)


class TestLostUnnoticed:
    """Nobody can see that the context is another one, until the block ends there."""

    def test_then_the_end_of_the_block_is_refused_and_nothing_is_committed(self, shop: Shop, rows: Rows) -> None:
        manager, lost = contextmanager(shop.with_a_task)(), Context()
        lost.run(manager.__enter__)
        shop.mail.delay()
        with pytest.raises(CaptureLost, match="mail' was perhaps sent past the outbox"):
            manager.__exit__(None, None, None)
        assert (shop.sent, rows.hot()) == (1, [])

    def test_without_such_a_call_it_is_committed(self, shop: Shop, rows: Rows) -> None:
        manager, lost = contextmanager(shop.with_a_task)(), Context()
        lost.run(manager.__enter__)
        manager.__exit__(None, None, None)
        assert (shop.sent, len(rows.hot())) == (0, 1)
        lost.run(shop.mail.delay)  # the block has ended
        assert (shop.sent, len(rows.hot())) == (1, 1)

    def test_an_error_of_the_application_stays_the_error(self, shop: Shop) -> None:
        manager, lost = contextmanager(shop.with_a_task)(), Context()
        lost.run(manager.__enter__)
        shop.mail.delay()
        assert manager.__exit__(LookupError, LookupError(), None) is False
