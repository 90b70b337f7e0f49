"""Brings a worker back soon to a broker that was away or hung: without long waits, and without many in a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from outbox_tasks.broker.broker import AT_ONCE
from outbox_tasks.internals import (
    close_redis_in_pool,
    set_connect_waits,
    wrap_event_publish,
    wrap_restore,
)
from outbox_tasks.worker.resources import ConsumerStep

log = logging.getLogger(__name__)

WAITS = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 5.0}
"""Seconds between two tries to connect. kombu's own waits grow to half a minute: too long once the broker is back."""

SILENT = 10.0
"""Seconds without events after one of them took long."""


class ReconnectSoon(ConsumerStep):
    """See the top of this file."""

    def create(self, consumer: Any) -> None:
        set_connect_waits(consumer, WAITS)
        close_redis_in_pool(consumer)

    def start(self, consumer: Any) -> None:
        wrap_event_publish(consumer, drop_events_while_slow)
        wrap_restore(consumer, stop_after_failure)


def drop_events_while_slow(publish: Callable[..., Any]) -> Callable[..., Any]:
    """Like `publish`, but drops events for a while after one of them took long: they are only for show. Celery keeps
    those that failed, and tries them all again, one after another, in the loop that should consume."""
    until = 0.0

    def publish_or_not(*arguments: Any, **keywords: Any) -> None:
        nonlocal until
        began = time.monotonic()
        if began < until:
            return
        publish(*arguments, **keywords)
        now = time.monotonic()
        if now - began > AT_ONCE:
            until = now + SILENT

    return publish_or_not


def stop_after_failure(restore: Callable[..., Any]) -> Callable[..., Any]:
    """Like `restore`, which puts unacknowledged messages back into their queues, but stops after the first failure:
    each failure takes long, and the messages come back in any case when their leases run out."""
    broken = False

    def restore_or_not(*arguments: Any, **keywords: Any) -> None:
        nonlocal broken
        if broken:
            return
        try:
            restore(*arguments, **keywords)
        except Exception as error:
            broken = True
            log.warning("what was taken from the queue and not begun comes back as its leases run out: %s", error)

    return restore_or_not
