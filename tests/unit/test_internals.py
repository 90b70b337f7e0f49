"""The installed Celery, kombu and SQLAlchemy still have, and still call, what the `internals.py` of
broker and of writing rely on.

`make matrix` runs this file on older releases, too.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from inspect import signature
from signal import SIGUSR1, raise_signal, signal
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from billiard import pool
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, beat, group, signals
from celery.app import amqp
from celery.concurrency import prefork
from celery.worker import loops
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Connection as BrokerConnection
from kombu.transport import azurestoragequeues, pyamqp, redis
from packaging.version import Version
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.util import greenlet_spawn

from outbox_tasks.broker import internals
from outbox_tasks.broker.tls import verified
from outbox_tasks.errors import ResultNotThereYet
from outbox_tasks.model import Message
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage
from outbox_tasks.worker.reconnect import PAUSES_SECONDS
from outbox_tasks.writing import internals as of_writing
from outbox_tasks.writing.capture import capturing
from outbox_tasks.writing.record import Target


def calls(caller: Callable[..., Any], name: str) -> bool:
    """Whether a function uses an attribute of this name."""
    return name in caller.__code__.co_names


CALLS: list[tuple[Callable[..., Any], str]] = [
    # A worker makes its task handler, and connects.
    (loops.asynloop, "create_task_handler"),
    (loops.synloop, "create_task_handler"),
    (Consumer.connection_for_read, "ensure_connected"),
    (Consumer.ensure_connected, "ensure_connection"),
    (Celery._connection, "Connection"),
    # kombu reads from Redis, makes a client for each command, and a pool process closes what it has inherited.
    (redis.Channel.__init__, "handlers"),
    (redis.MultiChannelPoller.on_readable, "handlers"),
    (redis.Channel.conn_or_acquire.__wrapped__, "_create_client"),  # type: ignore[attr-defined]
    (redis.Channel._create_client, "pool"),
    (prefork.process_initializer, "worker_process_init"),
    (redis.MultiChannelPoller.on_poll_start, "_channels"),
    (redis.Transport.__init__, "cycle"),
    # Beat sends what is due.
    (beat.Service.start, "tick"),
    (beat.Scheduler.tick, "populate_heap"),
    # kombu sends to Azure.
    (azurestoragequeues.Channel._ensure_queue, "queue_service"),
    (azurestoragequeues.Channel._put, "_ensure_queue"),
]
"""Functions, and what they use that we replace or call."""

PARAMETERS: dict[Callable[..., Any], list[str]] = {
    Consumer.ensure_connected: ["self", "conn"],
    redis.Channel._create_client: ["self", "asynchronous"],
    redis.Channel._close_clients: ["self"],
}


def test_private_names_are_there_and_are_called() -> None:
    assert [(caller, name) for caller, name in CALLS if not calls(caller, name)] == []
    assert {function: list(signature(function).parameters) for function in PARAMETERS} == PARAMETERS
    assert callable(Consumer.create_task_handler)
    assert hasattr(redis.Channel, "client")
    assert isinstance(Request.eventer, property)
    constants = redis.Channel.__init__.__code__.co_consts
    assert "BRPOP" in {key for const in constants for key in (const if isinstance(const, tuple) else (const,))}
    azure = azurestoragequeues.Channel.queue_service.fget.__code__
    assert {"_queue_service", "_url", "_credential"} <= set(azure.co_names)


def test_a_worker_connects_with_the_pauses_that_we_set() -> None:
    with BrokerConnection("memory://") as connection:
        assert connection.ensure_connection(**PAUSES_SECONDS).connected


def test_kombu_enters_the_name_of_a_host() -> None:
    assert "ssl" not in verified("sentinel://a").transport_options["sentinel_kwargs"]
    several = verified("amqps://a//;amqps://b//")
    assert "server_hostname" in pyamqp.Transport.establish_connection.__code__.co_consts
    assert several.ssl["server_hostname"] is None
    several.ssl["server_hostname"] = "a"  # as it does
    assert several.ssl["server_hostname"] is None
    assert dict(**several.ssl)["server_hostname"] == "a"


def test_a_pool_process_closes_the_channels_of_the_poller_as_it_begins() -> None:
    closed: list[str] = []
    channel = SimpleNamespace(_close_clients=lambda: closed.append("clients"))
    consumer: Any = SimpleNamespace(
        connection=SimpleNamespace(transport=SimpleNamespace(cycle=SimpleNamespace(_channels=[channel])))
    )
    internals.close_redis_in_pool(consumer)
    [*_, (_, receiver)] = signals.worker_process_init.receivers
    try:
        signals.worker_process_init.send(sender=None)
    finally:
        signals.worker_process_init.disconnect(receiver)
    assert closed == ["clients"]


def test_no_other_transport_is_taken_for_redis() -> None:
    with BrokerConnection("memory://") as connection:
        channel = connection.default_channel
        taking = SimpleNamespace(channel=channel)
        consumer: Any = SimpleNamespace(task_consumer=taking, event_dispatcher=None, connection=connection)
        internals.wrap_redis_read(consumer, pytest.fail)
        internals._close_redis(consumer)


def test_the_soft_time_limit_interrupts_tasks_and_not_the_report_of_what_became_of_them() -> None:
    assert pool.SIG_SOFT_TIMEOUT == SIGUSR1
    assert calls(pool.Worker.after_fork, "soft_timeout_sighandler")
    app = Celery(set_as_current=False)

    @app.task
    def slow() -> None:
        internals.limit_only_tasks()
        internals.limit_only_tasks()  # each task does
        raise_signal(SIGUSR1)

    usual = signal(SIGUSR1, pool.soft_timeout_sighandler)
    try:
        assert isinstance(slow.apply().result, SoftTimeLimitExceeded)
        raise_signal(SIGUSR1)
    finally:
        signal(SIGUSR1, usual)


class OpenTransaction:
    is_active = True


@pytest.mark.parametrize("protocol", [1, 2])
def test_send_task_on_a_view_of_the_app_ends_in_the_recorder(protocol: int) -> None:
    app = Celery(set_as_current=False, broker="amqp://localhost:1", backend="redis://localhost:1")
    app.conf.update(task_protocol=protocol, task_default_queue_type="quorum", task_send_sent_event=True)
    stored: list[Message] = []
    opened = OpenTransaction()

    def store(message: Message) -> object:
        stored.append(message)
        return opened

    with capturing(Target(store)):
        result = app.send_task("orders.bill", (42,), {"soon": True}, countdown=5, reply_to="replies")
        group([app.signature("one"), app.signature("two") | app.signature("three")]).apply_async()
    assert [message.event_type for message in stored] == ["orders.bill", "one", "two"]
    assert stored[0].aggregate_id == result.id
    for wait in (result.get, result.wait):
        with pytest.raises(ResultNotThereYet):
            wait()
    assert stored[0].deliver_at is not None
    headers = stored[0].headers
    assert headers is not None
    told = TaskMessage.loads(headers[ENVELOPE])
    assert (told.routing_key, told.content_type) == ("celery", "application/json")
    assert told.declare


def test_a_worker_marks_that_it_sends_what_follows_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not of_writing.sends_what_follows()
    mark = getattr(amqp, "_callback_publish_retry", None)
    assert (mark is not None) == (Version(celery.__version__) >= Version("5.7"))
    if mark is not None:
        token = mark.set(SimpleNamespace())
        assert of_writing.sends_what_follows()
        mark.reset(token)


LISTEN: dict[str, Callable[[Engine], None]] = {
    "before": lambda engine: event.listen(engine, "before_cursor_execute", lambda *_: None),
    "after": lambda engine: event.listen(engine, "after_cursor_execute", lambda *_: None),
    "do": lambda engine: event.listen(engine.dialect, "do_execute", lambda *_: None),
    "error": lambda engine: event.listen(engine, "handle_error", lambda *_: None),
    "log": lambda engine: setattr(engine, "echo", True),
}


@pytest.mark.parametrize("way", LISTEN)
def test_sqlalchemy_says_whether_somebody_listens(way: str) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        assert not of_writing.is_heard(connection)
    LISTEN[way](engine)
    with engine.connect() as connection:
        assert of_writing.is_heard(connection)


@pytest.mark.parametrize(
    ("error", "raised"), [(sqlite3.OperationalError("no"), OperationalError), (ZeroDivisionError(), ZeroDivisionError)]
)
def test_sqlalchemy_raises_errors_of_the_driver_as_its_own(error: Exception, raised: type[Exception]) -> None:
    def execute(connection: Connection) -> None:
        try:
            raise error
        except Exception as caught:
            of_writing.raise_as_sqlalchemy(connection, caught, "SELECT 1", {}, connection.connection.cursor())

    with create_engine("sqlite://").connect() as connection, pytest.raises(raised):
        execute(connection)


def test_sqlalchemy_can_await_in_its_greenlets_only() -> None:
    async def inside() -> bool:
        return await greenlet_spawn(of_writing.can_await)

    assert not of_writing.can_await()
    assert asyncio.run(inside())


def test_django_marks_the_transaction_that_a_test_case_rolls_back() -> None:
    pytest.importorskip("django")
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.transaction import Atomic
    from django.test import TestCase

    assert calls(Atomic.__enter__, "atomic_blocks")
    assert calls(TestCase._enter_atomics.__func__, "_from_testcase")
    assert calls(BaseDatabaseWrapper.__init__, "atomic_blocks")
    connection = SimpleNamespace(atomic_blocks=[])
    assert of_writing.block_of_test(connection) is None
    outer, of_test, inner = (Atomic("default", True, False) for _ in range(3))
    of_test._from_testcase = True
    connection.atomic_blocks += [outer, of_test, inner]
    assert of_writing.block_of_test(connection) is of_test
    connection.in_atomic_block = True
    assert of_writing.in_block_of_app(connection)
    connection.atomic_blocks.pop()
    assert not of_writing.in_block_of_app(connection)
