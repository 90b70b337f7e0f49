"""Blocks of `capture` whose code runs in another context than their `with`: its tasks are stored, or it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
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
    """An application at a real broker, and two ways to open a block."""

    def __init__(self, outbox: Outbox, engine: Engine, app: Celery, client: redis.Redis) -> None:
        self.outbox, self._engine, self._client = outbox, engine, client
        self._queue = f"outbox_test_{uuid4().hex[:8]}"
        app.conf.task_default_queue = self._queue
        self.mail = app.task(name="shop.mail", shared=False)(_mail)

    @property
    def sent(self) -> int:
        return int(self._client.llen(self._queue))  # type: ignore[arg-type]

    def clear(self) -> None:
        self._client.delete(self._queue)

    def plain(self) -> Iterator[None]:
        with Session(self._engine) as session, session.begin(), self.outbox.capture(session):
            self.mail.delay()
            yield

    async def coroutine(self) -> AsyncIterator[None]:
        with contextmanager(self.plain)():
            yield


@pytest.fixture
def shop(settings: MakeSettings, rows: Rows, engine: Engine, redis_url: str) -> Iterator[Shop]:
    app = Celery("shop", broker=redis_url, set_as_current=False)
    outbox = Outbox(settings(nudge=False, destinations={"tasks": {"url": "celery://"}}), celery=app)
    with redis.Redis.from_url(redis_url) as client:
        shop = Shop(outbox, engine, app, client)
        yield shop
        shop.clear()


@pytest.mark.parametrize(("dependency", "status", "stored"), [("plain", 500, 0), ("coroutine", 200, 2)])
def test_a_dependency_of_fastapi_is_async_or_rolled_back(
    shop: Shop, rows: Rows, dependency: str, status: int, stored: int
) -> None:
    api = FastAPI()

    @api.get("/", dependencies=[Depends(getattr(shop, dependency), scope="function")])
    def answer() -> None:
        shop.mail.delay()

    async def get() -> int:
        transport = ASGITransport(api, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://shop") as client:
            return (await client.get("/")).status_code

    assert (asyncio.run(get()), len(rows.hot())) == (status, stored)


def test_a_block_that_ends_elsewhere_is_refused_and_holds_up_nobody(shop: Shop, rows: Rows) -> None:
    manager, lost = contextmanager(shop.plain)(), Context()
    lost.run(manager.__enter__)
    with pytest.raises(CaptureLost, match="async def"):
        manager.__exit__(None, None, None)
    assert (shop.sent, rows.hot()) == (0, [])
    lost.run(shop.mail.delay)  # the block has ended
    assert (shop.sent, rows.hot()) == (1, [])


def test_an_error_of_the_application_stays_the_error(shop: Shop) -> None:
    manager: Any = contextmanager(shop.plain)()
    Context().run(manager.__enter__)
    assert manager.__exit__(LookupError, LookupError(), None) is False
