"""Brings a worker back soon to a broker that was away or hung, and ends a worker that failed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import bootsteps
from celery.platforms import EX_FAILURE

from outbox_tasks.broker.broker import FAILED_AT_ONCE_SECONDS
from outbox_tasks.broker.internals import (
    close_redis_in_pool,
    set_connect_waits,
    wrap_event_publish,
    wrap_restore,
)
from outbox_tasks.worker.resources import ConsumerStep, serves

log = logging.getLogger(__name__)

PAUSES_SECONDS = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 5.0}
"""Between two tries to connect. kombu's own pauses grow to half a minute: too long once the broker is back."""


class ReconnectSoon(ConsumerStep):
    """Lets a worker consume again soon after an outage: without long pauses, and without many long waits in a row."""

    def create(self, consumer: Any) -> None:
        set_connect_waits(consumer, PAUSES_SECONDS)
        close_redis_in_pool(consumer)

    def start(self, consumer: Any) -> None:
        wrap_event_publish(consumer, drop_events_while_slow)
        wrap_restore(consumer, stop_after_failure)


def drop_events_while_slow(publish: Callable[..., Any]) -> Callable[..., Any]:
    """Like `publish`, but drops events for 10 seconds after one of them took long: they are only for show. Celery keeps
    the events that failed, and tries them all again, one after another, in the loop that should consume."""
    until = 0.0

    def publish_or_not(*arguments: Any, **keywords: Any) -> None:
        nonlocal until
        began = time.monotonic()
        if began < until:
            return
        publish(*arguments, **keywords)
        now = time.monotonic()
        if now - began > FAILED_AT_ONCE_SECONDS:
            until = now + 10

    return publish_or_not


def stop_after_failure(restore: Callable[..., Any]) -> Callable[..., Any]:
    """Like `restore`, which puts unacknowledged messages back into their queues, but stops after the first failure:
    each failure takes long, and the messages come back in any case when their leases run out."""
    has_failed = False

    def restore_or_not(*arguments: Any, **keywords: Any) -> None:
        nonlocal has_failed
        if has_failed:
            return
        try:
            restore(*arguments, **keywords)
        except Exception as error:
            has_failed = True
            log.warning("what was taken from the queue and not begun comes back as its leases run out: %s", error)

    return restore_or_not


class EndFailed(bootsteps.StartStopStep):
    """Ends a worker that failed, so that its supervisor can start another. After an unrecoverable error, Celery reads
    the last results of the pool, and waits for good if it can't."""

    def include_if(self, worker: Any) -> bool:
        return serves(worker.app)

    def close(self, worker: Any) -> None:
        """The worker begins to end. At the hard time limit none of its sends runs any more."""
        if worker.exitcode == EX_FAILURE:
            timer = threading.Timer(worker.app.outbox_relay.given.hard_time_limit, _end)
            timer.daemon = True
            timer.start()


def _end() -> None:
    log.critical("this worker failed, and could not end in order: it ends now")
    os._exit(EX_FAILURE)
