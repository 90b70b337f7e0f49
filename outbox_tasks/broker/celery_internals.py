"""What the relay uses of Celery and kombu that their documentation does not promise.

Seen on Celery 5.5 and 5.7, with kombu 5.5 and 5.7. `tests/unit/test_celery_internals.py` fails for each one that the
installed release no longer has, or no longer calls. The Redis functions do nothing on other transports.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]


def wrap_task_handler(consumer: Any, wrap: Wrap) -> None:
    """Wrap the function that takes each message from the broker. `Consumer.create_task_handler` makes it, with each
    connection."""
    make = consumer.create_task_handler
    consumer.create_task_handler = lambda *arguments, **keywords: wrap(make(*arguments, **keywords))


def set_connect_waits(consumer: Any, waits: dict[str, float]) -> None:
    """Set the waits between two tries to connect. `Consumer.ensure_connected` takes none, and neither does Celery's
    configuration."""
    ensure = consumer.ensure_connected

    def ensure_connected(connection: Any) -> Any:
        connection.ensure_connection = partial(connection.ensure_connection, **waits)
        return ensure(connection)

    consumer.ensure_connected = ensure_connected


def wrap_event_publish(consumer: Any, wrap: Wrap) -> None:
    """Wrap `EventDispatcher._publish`, which sends events to the broker."""
    dispatcher = consumer.event_dispatcher
    if dispatcher is not None:
        dispatcher._publish = wrap(dispatcher._publish)


def wrap_restore(consumer: Any, wrap: Wrap) -> None:
    """Wrap `Channel._restore` of kombu's virtual transports: it puts an unacknowledged message back into its queue."""
    channel = consumer.task_consumer.channel
    if hasattr(channel, "_restore"):
        channel._restore = wrap(channel._restore)


def wrap_redis_read(consumer: Any, wrap: Wrap) -> None:
    """Wrap the reader in `Channel.handlers["BRPOP"]` of the Redis transport: it decodes what Redis has answered."""
    readers = getattr(consumer.task_consumer.channel, "handlers", {})
    if "BRPOP" in readers:
        readers["BRPOP"] = wrap(readers["BRPOP"])


def redis_steps(consumer: Any) -> list[int]:
    """`Channel.priority_steps` of the Redis transport: each has a list of its own. Empty on other transports."""
    channel = consumer.task_consumer.channel
    return list(getattr(channel, "priority_steps", ())) if hasattr(channel, "_brpop_start") else []


def choose_redis_steps(consumer: Any, choose: Callable[[], list[int] | None], timeout: float) -> None:
    """Before each `Channel._brpop_start` of the Redis transport, which asks for the next message, ask `choose` for the
    steps to take from, with this timeout; None: from all, as ever."""
    channel = consumer.task_consumer.channel
    take, steps = channel._brpop_start, channel.priority_steps

    def take_chosen(given: float | None = None) -> None:
        chosen = choose()
        if chosen is None:
            take(given)
            return
        channel.priority_steps = chosen
        try:
            take(timeout)
        finally:
            channel.priority_steps = steps

    channel._brpop_start = take_chosen


def close_redis_in_pool(consumer: Any) -> None:
    """Let each process of the pool close the connections that it inherits from the consumer: `Channel._close_clients`
    of the Redis transport. While one stays open there, epoll reports it here too, even after kombu has closed it.
    kombu then reads from the connection that has the same number now, and waits for good."""
    from billiard.util import register_after_fork

    register_after_fork(consumer, _close_redis)


def _close_redis(consumer: Any) -> None:
    cycle = consumer.connection and getattr(consumer.connection.transport, "cycle", None)
    for channel in getattr(cycle, "_channels", ()):
        channel._close_clients()


def keep_redis_client(channel: Any) -> None:
    """Let `Channel.conn_or_acquire` of the Redis transport use one client again and again. `Channel._create_client`
    would make one for each command, which takes longer than the command."""
    if "_create_client" in vars(channel) or not hasattr(channel, "_create_client"):
        return
    create = channel._create_client
    kept: dict[Any, Any] = {}

    def create_or_reuse(asynchronous: bool = False) -> Any:
        if asynchronous:
            return create(asynchronous)
        pool = channel.pool  # another one, once its connections were lost
        if pool not in kept:
            kept.clear()
            kept[pool] = create()
        return kept[pool]

    channel._create_client = create_or_reuse


def redis_length(channel: Any, queue: str) -> int | None:
    """The length of a queue by `Channel._size` of the Redis transport: one round trip, where the public way takes two.
    None on other transports."""
    return int(channel._size(queue)) if hasattr(channel, "client") else None


def redis_unacked(channel: Any) -> int | None:
    """How many messages consumers have taken and not acknowledged, by the hash `Channel.unacked_key` of the Redis
    transport. None on other transports."""
    return int(channel.client.hlen(channel.unacked_key)) if hasattr(channel, "client") else None


def redis_first(channel: Any, queue: str) -> dict[str, Any] | None:
    """The headers of the message that a Redis gives out next, by the list that the transport keeps for a queue's first
    priority. None on other transports, or if there is none that can be read."""
    if not hasattr(channel, "client"):
        return None
    text = channel.client.lindex(f"{getattr(channel, 'global_keyprefix', '')}{queue}", -1)
    try:
        headers = json.loads(text)["headers"] if text else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return headers if isinstance(headers, dict) else None


def order_anew(scheduler: Any) -> None:
    """Let beat put its entries in order again: `Scheduler.tick` keeps them in a heap, by times of day."""
    scheduler._heap = None


def limit_only_tasks() -> None:
    """Let the soft time limit raise only while a task runs: billiard's `soft_timeout_sighandler`. It may come just as a
    process writes what has become of its task. The worker then can't read what follows, and ends."""
    from billiard import pool
    from celery import current_task

    raises = pool.soft_timeout_sighandler
    if raises.__module__ != pool.__name__:
        return

    def raise_in_task(*signal: Any) -> None:
        if current_task:
            raises(*signal)

    pool.soft_timeout_sighandler = raise_in_task


def quiet_tracer(task: Any) -> Function:
    """`build_tracer` makes what runs a task: signals, retries and failures. This one logs no line for a success."""
    from celery.app import trace

    logger = logging.getLogger(trace.__name__)
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))  # build_tracer looks at the level once
    try:
        tracer: Function = trace.build_tracer(task.name, task, app=task.app)
    finally:
        logger.setLevel(level)
    return tracer


def tracer_is_wrapped() -> bool:
    """Whether somebody has replaced `build_tracer`, as some monitors do."""
    from celery.app import trace

    return bool(trace.build_tracer.__module__ != trace.__name__)


def replace_safe_say(say: Function) -> None:
    """Replace `safe_say`, by which a worker writes past its loggers in signal handlers."""
    from celery.apps import worker

    worker.safe_say = say
