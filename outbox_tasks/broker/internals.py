"""What we use of Celery, kombu and billiard that they do not promise, and our patches of their workers.

Seen on Celery and kombu 5.5 to 5.7. `tests/unit/test_internals.py` fails for each one that a release no longer has, or
no longer calls; `make matrix` runs it on each of them. The Redis functions do nothing on other transports.
"""

from __future__ import annotations

import signal
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


def wrap_redis_read(consumer: Any, wrap: Wrap) -> None:
    """Wrap the reader in `Channel.handlers["BRPOP"]` of the Redis transport: it decodes what Redis has answered."""
    readers = getattr(consumer.task_consumer.channel, "handlers", {})
    if "BRPOP" in readers:
        readers["BRPOP"] = wrap(readers["BRPOP"])


def close_redis_in_pool(consumer: Any) -> None:
    """Let each process of the pool close the connections that it inherits from the consumer: `Channel._close_clients`
    of the Redis transport. While one stays open there, epoll reports it here too, even after kombu has closed it.
    kombu then reads from the connection that has the same number now, and waits for good."""
    from celery.signals import worker_process_init

    worker_process_init.connect(partial(_close_redis, consumer), weak=False)


def _close_redis(consumer: Any, **_: Any) -> None:
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

    def create_or_reuse(*_: object, **__: object) -> Any:
        pool = channel.pool  # another one, once its connections were lost
        if pool not in kept:
            kept.clear()
            kept[pool] = create()
        return kept[pool]

    channel._create_client = create_or_reuse


def wrap_tick(scheduler: Any, wrap: Wrap) -> None:
    """Wrap `Scheduler.tick`, in which beat sends what is due, and says how long to sleep."""
    scheduler.tick = wrap(scheduler.tick)


def limit_only_tasks() -> None:
    """Let the soft time limit raise only while a task runs: billiard's handler of SIGUSR1, in a process of the pool. It
    may come just as a process writes what has become of its task. The worker then can't read what follows, and ends."""
    from celery import current_task

    raises: Any = signal.getsignal(signal.SIGUSR1)
    if getattr(raises, "__module__", None) == "billiard.pool":
        signal.signal(signal.SIGUSR1, lambda *caught: raises(*caught) if current_task else None)
