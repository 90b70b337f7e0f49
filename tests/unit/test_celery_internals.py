"""The installed Celery and kombu still have, and still call, what `outbox_tasks.broker.celery_internals` wraps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any

import pytest
from billiard import pool
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.process import BaseProcess
from celery import Celery, beat, signals
from celery.app import trace
from celery.apps import worker
from celery.events.dispatcher import EventDispatcher
from celery.worker import loops
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Connection
from kombu.transport import redis, virtual

from outbox_tasks.broker import celery_internals as internals
from outbox_tasks.worker.reconnect import WAITS


def calls(caller: Callable[..., Any], name: str) -> bool:
    """Whether a function uses an attribute of this name."""
    return name in caller.__code__.co_names


def test_the_loops_of_a_worker_make_their_task_handler_with_create_task_handler() -> None:
    assert callable(Consumer.create_task_handler)
    assert calls(loops.asynloop, "create_task_handler")
    assert calls(loops.synloop, "create_task_handler")


def test_a_worker_connects_with_ensure_connected_which_asks_ensure_connection() -> None:
    assert list(signature(Consumer.ensure_connected).parameters) == ["self", "conn"]
    assert calls(Consumer.connection_for_read, "ensure_connected")
    assert calls(Consumer.ensure_connected, "ensure_connection")
    with Connection("memory://") as connection:
        assert connection.ensure_connection(**WAITS).connected


def test_events_are_sent_with_publish_of_the_dispatcher() -> None:
    assert callable(EventDispatcher._publish)
    assert calls(EventDispatcher.publish, "_publish")
    assert calls(EventDispatcher.flush, "_publish")


def test_unacknowledged_messages_return_by_restore_of_the_channel() -> None:
    assert callable(redis.Channel._restore)
    assert calls(virtual.QoS.restore_unacked, "_restore")


def test_redis_reads_with_the_handlers_of_the_channel() -> None:
    assert calls(redis.Channel.__init__, "handlers")
    assert "BRPOP" in {key for const in redis.Channel.__init__.__code__.co_consts for key in
                       (const if isinstance(const, tuple) else (const,))}  # fmt: skip
    assert calls(redis.MultiChannelPoller.on_readable, "handlers")


def test_redis_asks_with_brpop_start_for_the_priority_steps_of_the_channel() -> None:
    assert signature(redis.Channel._brpop_start).parameters.keys() == {"self", "timeout"}
    assert calls(redis.MultiChannelPoller._register_BRPOP, "_brpop_start")
    assert calls(redis.Channel._brpop_start, "priority_steps")
    assert len(redis.Channel.priority_steps) > 1


def test_redis_makes_a_client_for_each_command_with_create_client_and_a_pool_for_all() -> None:
    assert calls(redis.Channel.conn_or_acquire.__wrapped__, "_create_client")  # type: ignore[attr-defined]
    assert list(signature(redis.Channel._create_client).parameters) == ["self", "asynchronous"]
    assert calls(redis.Channel._create_client, "pool")


def test_redis_knows_the_length_of_a_queue_by_size_of_the_channel() -> None:
    assert list(signature(redis.Channel._size).parameters) == ["self", "queue"]
    assert hasattr(redis.Channel, "client")


def test_a_pool_process_closes_the_channels_of_the_poller_as_it_begins() -> None:
    assert calls(BaseProcess._bootstrap, "_run_after_forkers")
    assert calls(redis.MultiChannelPoller.on_poll_start, "_channels")
    assert calls(redis.Transport.__init__, "cycle")
    assert list(signature(redis.Channel._close_clients).parameters) == ["self"]


def test_beat_keeps_its_entries_in_a_heap_that_it_makes_if_there_is_none() -> None:
    assert calls(beat.Scheduler.__init__, "_heap")
    assert calls(beat.Scheduler.tick, "_heap")
    assert calls(beat.Scheduler.tick, "populate_heap")


def test_no_other_transport_is_taken_for_redis() -> None:
    with Connection("memory://") as connection:
        channel = connection.default_channel
        taking = SimpleNamespace(channel=channel)
        consumer: Any = SimpleNamespace(task_consumer=taking, event_dispatcher=None, connection=connection)
        assert internals.redis_length(channel, "any") is None
        assert internals.redis_unacked(channel) is None
        assert internals.redis_first(channel, "any") is None
        assert internals.redis_steps(consumer) == []
        internals.wrap_redis_read(consumer, pytest.fail)
        internals.wrap_event_publish(consumer, pytest.fail)
        internals._close_redis(consumer)


def test_the_soft_time_limit_interrupts_tasks_and_not_the_report_of_what_became_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "soft_timeout_sighandler", pool.soft_timeout_sighandler)
    assert "soft_timeout_sighandler" in pool.Worker.after_fork.__code__.co_names
    internals.limit_only_tasks()
    internals.limit_only_tasks()  # of another app in the same process
    told = Celery(set_as_current=False)

    @told.task
    def slow() -> None:
        pool.soft_timeout_sighandler(10, None)

    assert isinstance(slow.apply().result, SoftTimeLimitExceeded)
    pool.soft_timeout_sighandler(10, None)


def test_a_request_gives_its_arguments_and_its_event_dispatcher() -> None:
    assert isinstance(Request.args, property)
    assert isinstance(Request.eventer, property)


def test_the_tracer_runs_a_task_with_its_signals_and_no_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    app = Celery(set_as_current=False, broker="memory://")
    ended: list[str] = []

    @app.task(name="added", ignore_result=True, shared=False)
    def added(one: int, other: int) -> int:
        return one + other

    def end(task_id: str, **_: Any) -> None:
        ended.append(task_id)

    signals.task_postrun.connect(end)
    try:
        with caplog.at_level(logging.INFO, "celery.app.trace"):
            result = internals.quiet_tracer(added)("an id", (1, 2), {}, {"id": "an id", "ignore_result": True})
            assert logging.getLogger("celery.app.trace").level == logging.INFO
    finally:
        signals.task_postrun.disconnect(end)
    assert (result[0], ended, caplog.messages) == (3, ["an id"], [])


def test_a_wrapped_build_tracer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not internals.tracer_is_wrapped()
    monkeypatch.setattr(trace, "build_tracer", lambda *arguments, **keywords: None)
    assert internals.tracer_is_wrapped()


def test_a_worker_says_that_it_ends_with_safe_say() -> None:
    assert next(iter(signature(worker.safe_say).parameters.values())).default is Parameter.empty
    assert calls(worker.on_cold_shutdown, "safe_say")
