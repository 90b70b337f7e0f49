"""Celery calls in a transaction: which are stored, which are refused, and what the relay sends in the end."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import ref

import pytest
import redis
from celery import Celery, Task, chain, chord, group
from celery.app.trace import build_tracer
from celery.contrib.django.task import DjangoTask
from celery.exceptions import AlwaysEagerIgnored, TimeoutError
from celery.result import AsyncResult
from httpx import ASGITransport, AsyncClient
from kombu.exceptions import EncodeError
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox_tasks import Outbox
from outbox_tasks.destinations.celery_task import CeleryTaskPublisher
from outbox_tasks.errors import (
    CaptureLost,
    InvalidMessage,
    NotInTransaction,
    PayloadNotSerializable,
    ResultNotThereYet,
    UncapturableTask,
)
from outbox_tasks.model import Step
from outbox_tasks.operating.problems import examine
from outbox_tasks.relay.send import send
from outbox_tasks.relay.settle import Listener, settle
from outbox_tasks.relay.store import Store
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage
from outbox_tasks.writing.capture import capturing as store_tasks
from outbox_tasks.writing.record import Target
from tests.claims import take_batch
from tests.conftest import MakeSettings, MakeStore, Rows, seconds_from_now
from tests.integration.sessions import driver
from tests.integration.shapes import calls, make_app

DEAD = "redis://127.0.0.1:1/0"
"""Nobody listens there."""

NOW = datetime.now(UTC)

Call = Callable[[], Any]


@pytest.fixture
def app() -> Celery:
    """The application, at a dead broker."""
    return make_app(DEAD)


@pytest.fixture
def task(app: Celery) -> Any:
    """A task of the application."""
    return app.tasks["shapes.note"]


class Queue:
    """A queue at a real broker."""

    def __init__(self, client: redis.Redis) -> None:
        self.name = f"outbox_test_{uuid4().hex[:8]}"
        self._client = client

    def __len__(self) -> int:
        return int(self._client.llen(self.name))  # type: ignore[arg-type]

    def messages(self) -> list[Any]:
        return [json.loads(raw) for raw in self._client.lrange(self.name, 0, -1)]  # type: ignore[union-attr]


@pytest.fixture
def queue(redis_url: str) -> Iterator[Queue]:
    with redis.Redis.from_url(redis_url) as client:
        made = Queue(client)
        yield made
        client.delete(made.name)


@pytest.fixture
def busy(redis_url: str) -> Celery:
    """Another app, at a real broker."""
    return make_app(redis_url)


@pytest.fixture
def call(busy: Celery, queue: Queue) -> Call:
    return lambda: busy.send_task("t", queue=queue.name)


@pytest.fixture
def outbox(settings: MakeSettings, rows: Rows, app: Celery) -> Outbox:
    return Outbox(settings(nudge=False, destinations={"tasks": {"url": "celery://?accept=json,pickle"}}), celery=app)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as made:
        yield made


def test_a_task_whose_content_its_destination_does_not_accept_is_refused_at_the_call(
    settings: MakeSettings, rows: Rows, app: Celery, session: Session
) -> None:
    accepts = r"destination 'tasks' accepts .*accept="
    for url, serializer, reason in (
        ("celery://", "pickle", accepts), ("celery://?accept=pickle", "json", accepts),
        ("celery://?queue=shop", "json", "its destination's queue is shop"),
    ):  # fmt: skip
        outbox = Outbox(settings(nudge=False, destinations={"tasks": {"url": url}}), celery=app)
        with session.begin(), pytest.raises(UncapturableTask, match=reason):
            outbox.apply_async(session, app.tasks["shapes.routed"], (1,), serializer=serializer)
    assert rows.hot() == []


def envelope(row: Any) -> TaskMessage:
    return TaskMessage.loads(row.headers[ENVELOPE])


def stored(rows: Rows) -> list[str]:
    """The ids of the stored tasks, in order."""
    return [row.aggregate_id for row in rows.hot()]


class TestStoredCalls:
    def test_with_django_what_waits_for_the_commit_is_stored(
        self, outbox: Outbox, app: Celery, task: Any, engine: Engine, rows: Rows
    ) -> None:
        seen: list[int] = []

        class Called(Task):  # type: ignore[misc]
            name = "called"

            def delay(self, number: int) -> None:
                seen.append(number)

        eager = make_app(DEAD)
        eager.conf.task_always_eager = True
        with driver("Django", outbox, engine) as django:
            from django.db import transaction

            django.begin()
            transaction.on_commit(partial(app.register_task(Called()).delay, 1))  # before the block
            with outbox.capture(django.session):
                transaction.on_commit(partial(task.delay, 1, name="Zoë"))
                transaction.on_commit(task.s(2).delay)
                transaction.on_commit(partial(seen.append, 2))
                django.savepoint()
                transaction.on_commit(partial(task.delay, 3))
                django.undo()
                DjangoTask.delay_on_commit(task, 4)
                transaction.on_commit(partial(eager.register_task(type("Late", (Called,), {})()).delay, 3))
                result = task.delay(5)
            with pytest.raises(ResultNotThereYet):
                result.get(timeout=1)
            assert seen == []
            django.commit()
        assert seen == [1, 2, 3]
        assert [json.loads(row.payload)[0] for row in rows.hot()] == [[5], [1], [2], [4]]

    def test_the_results_of_a_group_can_be_read(
        self, outbox: Outbox, app: Celery, task: Any, session: Session, own_redis: Any
    ) -> None:
        app.conf.result_backend = own_redis.url
        with session.begin(), outbox.capture(session):
            result = group(task.s(n) for n in range(3))()
        later = threading.Timer(
            0.2, lambda: [app.backend.store_result(each.id, n, "SUCCESS") for n, each in enumerate(result.results)]
        )
        later.start()
        assert result.get(timeout=60) == [0, 1, 2]
        later.join()

    def test_to_wait_for_a_result_before_the_commit_is_refused(
        self, outbox: Outbox, app: Celery, task: Any, session: Session, own_redis: Any
    ) -> None:
        app.conf.result_backend = own_redis.url
        with session.begin():
            single = outbox.delay(session, task, 1)
            many = outbox.delay(session, group(task.si(n) for n in range(2)))
            last = outbox.delay(session, chain(task.si(1), task.si(2), task.si(3)))
            with outbox.capture(session):
                body = chord([task.si(1), task.si(2)], task.si(3))()
            for result in (single, many, last, body):
                with pytest.raises(ResultNotThereYet, match="after the commit, so the wait would never end"):
                    result.get(timeout=30)
            with pytest.raises(ResultNotThereYet):
                AsyncResult(single.id, app=app).get(timeout=30)
        with pytest.raises(TimeoutError):  # it may be waited for now
            single.get(timeout=0.01)
        transaction = session.connection().get_transaction()
        of_connection = outbox.delay(session.connection(), task, 1)
        assert transaction is not None
        with pytest.raises(ResultNotThereYet):
            of_connection.get(timeout=30)
        transaction.commit()
        with pytest.raises(TimeoutError):  # though the transaction is still an object
            of_connection.get(timeout=0.01)

    def test_outside_of_a_transaction_capture_is_refused(self, outbox: Outbox, app: Celery, session: Session) -> None:
        with pytest.raises(NotInTransaction), outbox.capture(session):
            raise AssertionError


def _mail() -> None: ...


def _same(what: str) -> str:
    return what


class WithPartial(Task):
    def apply_async(self, *args: Any, **options: Any) -> Any:
        on_commit(partial(super().apply_async, *args, **options), robust=True)


class WithLambda(Task):
    def apply_async(self, *args: Any, **options: Any) -> Any:
        on_commit(lambda: super(WithLambda, self).apply_async(*args, **options))


class Skips(Task):
    """As celery-once and celery-singleton do."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        return self.AsyncResult("of another call")


def on_commit(function: Any, **options: Any) -> None:
    from django.db import transaction

    transaction.on_commit(function, **options)


def test_that_an_eager_app_stores_nothing_is_said_once(
    outbox: Outbox, app: Celery, session: Session, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery runs its tasks where they are called."""
    app.conf.task_always_eager = True
    task = app.task(name="shapes.eager", shared=False)(_same)
    with session.begin():
        for _ in range(2):
            assert outbox.delay(session, task, "delay").get() == "delay"
        del app.outbox_said_eager
        with outbox.capture(session):
            assert task.delay("capture").get() == "capture"
        with pytest.warns(AlwaysEagerIgnored):
            by_name = outbox.delay(session, "shapes.eager", "by name")
    assert stored(rows) == [by_name.id]
    [warning, _] = [record.getMessage() for record in caplog.records if "is eager" in record.getMessage()]
    [problem] = examine(outbox.settings, app, only=["always_eager"]).problems
    assert problem.fact in warning


@pytest.mark.parametrize(("kind", "is_stored"), [(WithPartial, True), (Skips, False)])
def test_a_class_with_calls_of_its_own_stores_them_or_returns_a_result(
    outbox: Outbox, engine: Engine, rows: Rows, kind: type[Task], is_stored: bool
) -> None:
    app = Celery("shop", broker=DEAD, task_cls=kind, set_as_current=False)
    with driver("Django", outbox, engine) as django:
        django.begin()
        result = outbox.delay(django.session, app.task(name="shop.mail", shared=False)(_mail))
        assert isinstance(result, AsyncResult)
        assert rows.hot() == []
        django.commit()
    assert stored(rows) == ([result.id] if is_stored else [])


def test_a_call_that_stores_nothing_and_returns_nothing_is_refused(outbox: Outbox, engine: Engine, rows: Rows) -> None:
    app = Celery("shop", broker=DEAD, task_cls=WithLambda, set_as_current=False)
    task = app.task(name="shop.mail", shared=False)(_mail)
    with driver("Django", outbox, engine) as django:
        django.begin()
        for call in (task, task.s()):
            with pytest.raises(UncapturableTask, match=r"WithLambda\.apply_async has .* super\(\)\.apply_async"):
                outbox.delay(django.session, call)
        django.rollback()


class TestTimes:
    def test_a_countdown_waits_in_the_table_also_with_quorum_queues(
        self, outbox: Outbox, session: Session, rows: Rows
    ) -> None:
        """There, Celery would use RabbitMQ's delayed delivery, which would delay the task again."""
        app = Celery("quorum", broker="amqp://127.0.0.1:1", set_as_current=False)
        app.conf.task_default_queue_type = "quorum"
        app.conf.task_default_exchange_type = "topic"
        with session.begin():
            outbox.apply_async(session, app.signature("t"), countdown=60)
        assert envelope(rows.hot()[0]).exchange == "celery"

    def test_an_expired_task_is_discarded_and_another_is_sent(
        self,
        outbox: Outbox,
        app: Celery,
        session: Session,
        rows: Rows,
        new_store: MakeStore,
        redis_url: str,
        queue: Queue,
    ) -> None:
        with session.begin():
            for seconds in (0.001, 3600):
                outbox.apply_async(session, app.signature("t"), expires=seconds, queue=queue.name)
        store = new_store(destinations={"tasks": {"url": f"celery://?broker={redis_url}"}})
        assert [verdict.step for verdict in relayed(store)] == [Step.DISCARDED, Step.SENT]
        assert [(row.state, row.last_error_code) for row in rows.archived()] == [
            ("discarded", "expired"), ("sent", None),
        ]  # fmt: skip
        [message] = queue.messages()
        assert 3_590_000 < int(message["properties"]["expiration"]) <= 3_600_000


def relayed(store: Store) -> list[Any]:
    """Deliver a batch of due tasks."""
    batch = take_batch(store, "tasks")
    publisher = CeleryTaskPublisher(store.settings.destinations["tasks"], store.settings)
    try:
        verdicts = send(store.settings, {"tasks": publisher}, "tasks", batch.messages)
    finally:
        publisher.close()
    return settle(store, batch.token, "tasks", verdicts, Listener(), 0.0).verdicts


class TestRefusedCalls:
    def test_a_chord_without_a_backend(self, outbox: Outbox, task: Any, session: Session, rows: Rows) -> None:
        with session.begin():
            for chorded in (chord([task.s(1)] * 2, task.s()), chain(task.s(0), group([task.s(1)] * 2), task.s())):
                with pytest.raises(NotImplementedError, match="result backend"):  # Celery's own word
                    outbox.delay(session, chorded)
        assert rows.hot() == []

    def test_what_can_not_be_stored(self, outbox: Outbox, app: Celery, task: Any, session: Session, rows: Rows) -> None:
        refused: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"connection": app.connection()}, UncapturableTask, "connection"),
            ({"args": (object(),)}, EncodeError, "JSON serializable"),  # the error of a direct call
            ({"headers": {"a": object()}}, PayloadNotSerializable, "in a header"),
            ({"eta": datetime(2100, 1, 1)}, InvalidMessage, "time zone"),  # noqa: DTZ001
            ({"expires": datetime(2100, 1, 1)}, InvalidMessage, "time zone"),  # noqa: DTZ001
        ]
        for options, error, reason in refused:
            with session.begin(), pytest.raises(error, match=reason):
                outbox.apply_async(session, task, **options)
        assert rows.hot() == []


class TestAppWide:
    @pytest.fixture
    def registry(self, engine: Engine) -> Iterator[scoped_session[Session]]:
        made = scoped_session(sessionmaker(engine))
        yield made
        made.remove()

    def test_calls_are_stored_only_in_a_transaction(
        self, busy: Celery, call: Call, queue: Queue, outbox: Outbox, registry: Any, rows: Rows, redis_url: str
    ) -> None:
        outbox.install(busy, capture=registry)
        call()
        assert len(queue) == 1
        registry()  # a session, and no transaction
        call()
        assert len(queue) == 2
        with registry.begin():
            with outbox.direct():
                call()
            make_app(redis_url).send_task("t", queue=queue.name)  # of an app that is not captured
            assert len(queue) == 4
            result = call()
        assert (len(queue), stored(rows)) == (4, [result.id])

    def test_calls_in_djangos_transaction_are_stored(
        self, busy: Celery, call: Call, queue: Queue, outbox: Outbox, engine: Engine, rows: Rows
    ) -> None:
        with driver("Django", outbox, engine) as django:
            outbox.install(busy, capture=django.session)
            assert busy.outbox_of_app is outbox
            call()
            django.begin()
            result = call()
            django.commit()
        assert (len(queue), stored(rows)) == (1, [result.id])

    def test_without_a_session_tasks_are_sent(
        self, redis_url: str, queue: Queue, outbox: Outbox, engine: Engine
    ) -> None:
        """As in beat, outside of a request: the application's own function may raise there, or know no session."""
        for capture in (scoped_session(sessionmaker(engine), scopefunc=lambda: 1 / 0), lambda: None):
            app = make_app(redis_url)
            outbox.install(app, capture=capture)
            app.send_task("t", queue=queue.name)
        assert len(queue) == 2


class TestContexts:
    """Blocks of `capture` whose code runs in another context than their `with`: its tasks are stored, or it fails."""

    @pytest.fixture
    def block(self, outbox: Outbox, engine: Engine, call: Call) -> Callable[[], Iterator[None]]:
        def block() -> Iterator[None]:
            with stored_in(outbox, engine):
                call()
                yield

        return block

    @pytest.mark.parametrize(("asynchronous", "status", "count"), [(False, 500, 0), (True, 200, 2)])
    def test_a_dependency_of_fastapi_is_async_or_rolled_back(
        self, block: Any, call: Call, rows: Rows, asynchronous: bool, status: int, count: int
    ) -> None:
        async def coroutine() -> AsyncIterator[None]:
            with contextmanager(block)():
                yield

        fastapi = pytest.importorskip("fastapi")  # its releases don't take the oldest pydantic that we do
        api = fastapi.FastAPI()
        depends = fastapi.Depends(coroutine if asynchronous else block, scope="function")
        api.get("/", dependencies=[depends])(lambda: call() and None)

        async def get() -> int:
            transport = ASGITransport(api, raise_app_exceptions=False)
            async with AsyncClient(transport=transport, base_url="http://shop") as client:
                return (await client.get("/")).status_code

        assert (asyncio.run(get()), len(rows.hot())) == (status, count)

    def test_a_block_that_ends_elsewhere_is_refused_and_holds_up_nobody(
        self, block: Any, call: Call, queue: Queue, rows: Rows
    ) -> None:
        manager, lost = contextmanager(block)(), Context()
        lost.run(manager.__enter__)
        with pytest.raises(CaptureLost, match="async def"):
            manager.__exit__(None, None, None)
        assert (len(queue), rows.hot()) == (0, [])
        lost.run(call)  # the block has ended
        assert (len(queue), rows.hot()) == (1, [])
        manager = contextmanager(block)()
        Context().run(manager.__enter__)
        assert not manager.__exit__(LookupError, LookupError(), None)  # the error of the application stays the error

    def test_a_block_that_has_ended_keeps_no_session(self) -> None:
        class Opened(set[Any]): ...

        kept = ref(session := Opened())
        with store_tasks(Target(session.add)):
            pass
        del session
        assert kept() is None


class TestInAWorker:
    def test_a_retry_is_not_stored(self, outbox: Outbox, engine: Engine, rows: Rows, own_redis: Any) -> None:
        """Its exception rolls the transaction back, and the retry with it."""
        app = make_app(own_redis.url)

        @app.task(bind=True, shared=False, name="again")
        def again(self: Any) -> None:
            with Session(engine) as session, session.begin(), outbox.capture(session):
                app.send_task("taken.back")
                raise self.retry(countdown=10)

        request = {"id": "7", "delivery_info": {}, "retries": 0, "is_eager": False}
        build_tracer("again", again, app=app)("7", (), {}, request)
        with redis.Redis.from_url(own_redis.url) as client:
            assert [message["headers"]["id"] for message in taken(client)["main"]] == ["7"]
        assert rows.hot() == []

    def test_what_follows_a_task_is_not_stored(
        self, outbox: Outbox, engine: Engine, rows: Rows, own_redis: Any
    ) -> None:
        """The worker sends it after the end of the task and its transaction."""
        app = make_app(own_redis.url)
        registry = scoped_session(sessionmaker(engine))
        outbox.install(app, capture=registry)

        marks = hasattr(app.amqp, "_retry_publish")  # since Celery 5.7

        @app.task(shared=False, name="reads")
        def reads() -> None:
            registry.execute(text("SELECT 1"))  # and leaves its transaction open, as reads do
            if marks:  # as Celery sends the body of a chord
                app.amqp._retry_publish(app.send_task, "body")

        request = {"id": "8", "delivery_info": {}, "retries": 0, "chain": [app.signature("next")], "is_eager": False}
        build_tracer("reads", reads, app=app)("8", (), {}, request)
        assert registry().in_transaction()
        registry.remove()
        with redis.Redis.from_url(own_redis.url) as client:
            assert [message["headers"]["task"] for message in taken(client)["main"]] == ["body"] * marks + ["next"]
        assert rows.hot() == []


class TestTheWire:
    @pytest.fixture
    def client(self, own_redis: Any) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(own_redis.url) as made:
            yield made

    def test_the_relay_sends_what_a_direct_call_would_have(
        self, own_redis: Any, client: redis.Redis, engine: Engine, new_store: MakeStore, rows: Rows
    ) -> None:
        """All shapes, compared as the broker keeps them."""
        app = make_app(own_redis.url)
        store = new_store(
            destinations={
                "tasks": {
                    "url": f"celery://?broker={own_redis.url}&accept=json,pickle",
                    "transport_options": app.conf.broker_transport_options,
                }
            }
        )
        outbox = Outbox(store.settings.replace(nudge=False))
        for name, call in calls(app, NOW):
            direct = []
            for capturing in (nullcontext, partial(stored_in, outbox, engine)):
                with same_ids_and_times(app), capturing():
                    call(1)
                direct.append(taken(client))
            rows.change(locked_until=seconds_from_now(-1))
            verdicts = relayed(store)
            assert {(verdict.step, verdict.error) for verdict in verdicts} == {(Step.SENT, None)}, name
            assert (taken(client), direct[1]) == (direct[0], {}), name  # a captured call reaches no broker


@contextmanager
def stored_in(outbox: Outbox, engine: Engine) -> Iterator[None]:
    with Session(engine) as session, session.begin(), outbox.capture(session):
        yield


@contextmanager
def same_ids_and_times(app: Celery) -> Iterator[None]:
    """Calls inside have the same ids and times in each run."""
    numbers = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("celery.app.base", "celery.app.task", "celery.canvas"):
            patch.setattr(f"{module}.uuid", lambda: f"id-{next(numbers)}", raising=False)
        patch.setattr(app, "now", lambda: NOW)
        yield


def taken(client: redis.Redis) -> dict[str, list[Any]]:
    """Take all messages, by queue, without the properties that differ in each run."""
    found: dict[str, list[Any]] = {}
    for key in sorted(client.keys("*")):  # type: ignore[type-var]
        if key.startswith(b"_kombu"):
            continue
        for raw in reversed(client.lrange(key, 0, -1)):  # type: ignore[arg-type]
            message = json.loads(raw)
            assert message["properties"].pop("delivery_tag")
            message["properties"].pop("expiration", None)
            found.setdefault(key.decode(), []).append(message)
        client.delete(key)
    return found
