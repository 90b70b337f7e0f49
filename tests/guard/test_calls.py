"""The guard sees calls of tasks that are sent while a transaction is open, and no others."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, group
from sqlalchemy import create_engine, delete, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from outbox_tasks.errors import InvalidArgument, SentPastOutbox
from outbox_tasks.guard.calls import SentPastOutboxWarning
from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    paid: Mapped[bool] = mapped_column(default=False)


@pytest.fixture
def engine() -> Any:
    made = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(made)
    return made


@pytest.fixture
def app() -> Celery:
    made = Celery("shop", broker="memory://", set_as_current=False)

    @made.task(name="shop.mail", shared=False)
    def mail(*_: Any) -> None: ...

    made.outbox = Outbox(Settings(destinations={"tasks": "celery://"}))
    return made


@pytest.fixture
def task(app: Celery) -> Any:
    app.outbox.guard(app, "raise")
    return app.tasks["shop.mail"]


CHANGES = {
    "add": lambda session: session.add(Order(id=1)),
    "add and flush": lambda session: (session.add(Order(id=1)), session.flush()),
    "insert": lambda session: session.execute(insert(Order).values(id=1)),
    "text": lambda session: session.execute(text("INSERT INTO orders (id, paid) VALUES (1, false)")),
    "attribute": lambda session: setattr(session.get(Order, 7), "paid", True),
    "delete": lambda session: session.delete(session.get(Order, 7)),
    "delete statement": lambda session: session.execute(delete(Order)),
    "savepoint": lambda session: (session.begin_nested(), session.add(Order(id=1)), session.flush()),
}

CALLS = {
    "delay": lambda task: task.delay(1),
    "apply_async": lambda task: task.apply_async((1,), countdown=9),
    "by name": lambda task: task.app.send_task("shop.mail"),
    "chain": lambda task: chain(task.si(), task.si()).apply_async(),
    "group": lambda task: group([task.si()], app=task.app).apply_async(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_call_after_any_change_is_refused_until_the_transaction_ends(engine: Any, task: Any, change: Any) -> None:
    with Session(engine) as session:
        session.add(Order(id=7))
        session.commit()
        change(session)
        with pytest.raises(SentPastOutbox, match=r"test_calls\.py, line \d+, while a SQLAlchemy session has changes"):
            task.delay()
        session.rollback()
        task.delay()
        session.get(Order, 7)
        task.delay()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_all_ways_to_call_are_seen(engine: Any, task: Any, call: Any) -> None:
    with Session(engine) as session:
        session.add(Order(id=1))
        with pytest.raises(SentPastOutbox, match=r"Task 'shop\.mail' was called"):
            call(task)


def test_what_is_read_stored_or_meant_is_let_through(engine: Any, app: Celery, task: Any) -> None:
    other = Celery("other", broker="memory://", set_as_current=False)
    with Session(engine) as session:
        session.execute(select(Order))
        session.execute(text("SELECT 1"))
        task.delay()
        session.add(Order(id=1))
        session.flush()
        with app.outbox.direct():
            task.delay()
        other.send_task("shop.mail")  # it is not guarded
        with ThreadPoolExecutor(1) as pool:  # another request, in a thread of its own
            pool.submit(task.delay).result()
        session.commit()
        task.delay()
    with Session(engine) as session, session.begin():
        session.add(Order(id=2))
    task.delay()


def test_scoped_sessions_are_seen_and_each_ends_for_itself(engine: Any, task: Any) -> None:
    session = scoped_session(sessionmaker(engine))
    with Session(engine) as first:
        session.add(Order(id=2))
        first.add(Order(id=1))
        first.rollback()
        with pytest.raises(SentPastOutbox):
            task.delay()
    session.remove()
    task.delay()


def test_asynchronous_sessions_are_seen_each_in_its_own_task(task: Any) -> None:
    async def order(id: int, opened: asyncio.Barrier) -> None:
        async with AsyncSession(engine) as session:
            session.add(Order(id=id))
            await session.flush()
            with pytest.raises(SentPastOutbox):
                task.delay()
            await opened.wait()
            await session.rollback()
            task.delay()

    async def read(opened: asyncio.Barrier) -> None:
        await opened.wait()
        task.delay()

    async def both() -> None:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        opened = asyncio.Barrier(2)
        await asyncio.gather(order(1, opened), read(opened))
        await engine.dispose()

    engine = create_async_engine("sqlite+aiosqlite://", poolclass=StaticPool)
    asyncio.run(both())


def test_it_warns_once_for_each_call_site_and_sends(engine: Any, app: Celery) -> None:
    app.outbox.guard(app)
    with Session(engine) as session, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session.add(Order(id=1))
        results = [app.tasks["shop.mail"].delay() for _ in range(3)]
        app.send_task("shop.mail")
    assert all(result.id for result in results)
    assert [(each.category, each.filename) for each in caught] == [(SentPastOutboxWarning, __file__)] * 2
    assert caught[1].lineno == caught[0].lineno + 1
    with pytest.raises(InvalidArgument, match=r'must be "warn" or "raise"'):
        app.outbox.guard(app, "loud")


def test_calls_of_an_eager_app_are_seen(engine: Any, app: Celery, task: Any) -> None:
    app.conf.task_always_eager = True
    with Session(engine) as session:
        assert task.delay().successful()
        session.add(Order(id=1))
        with pytest.raises(SentPastOutbox):
            task.delay()
        with app.outbox.direct():
            assert task.delay().successful()


def test_a_session_that_is_gone_is_forgotten(engine: Any, task: Any) -> None:
    for id in range(3):
        session = Session(engine)
        session.add(Order(id=id))
        del session
    gc.collect()
    task.delay()


DJANGO = """
import django
from django.conf import settings
memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": memory, "second": memory})
django.setup()
from celery import Celery
from django.db import connection, connections, transaction
from django.test import TestCase
from outbox_tasks import Outbox, Settings
from outbox_tasks.errors import SentPastOutbox

app = Celery("shop", broker="memory://")
@app.task(name="shop.mail")
def mail(): pass
outbox = Outbox(Settings(destinations={"tasks": "celery://"}))
connection.ensure_connection()
outbox.guard(app, "raise")

def refused(alias="default"):
    try:
        mail.delay()
    except SentPastOutbox as error:
        assert f"transaction.atomic() of database '{alias}' is open" in str(error), error
        return True
    return False

class Tests(TestCase):
    def runTest(self):
        assert not refused(), "in the block of a TestCase"
        with transaction.atomic():
            assert refused(), "in a block inside it"
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic():
                transaction.on_commit(mail.delay)

assert not refused(), "outside"
with transaction.atomic(using="second"):
    assert refused("second"), "of a connection that was made after the guard"
with transaction.atomic():
    assert refused(), "inside"
    with outbox.direct():
        assert not refused(), "direct"
    transaction.on_commit(mail.delay)
assert not refused(), "afterwards"
Tests.setUpClass()
test = Tests()
test.debug()
"""


def test_django_s_blocks_are_seen_but_not_those_of_its_tests(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", DJANGO], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
