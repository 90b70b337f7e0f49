"""A worker's way back to a broker that was away, or hangs: without long waits, and without many in a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery import bootsteps

from outbox_tasks.broker.broker import AT_ONCE
from outbox_tasks.broker.celery_internals import set_connect_waits, wrap_event_publish, wrap_restore
from outbox_tasks.worker.process import Relay, serves

log = logging.getLogger(__name__)

WAITS = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 5.0}
"""Seconds between two tries to connect. kombu's own grow to half a minute, which a worker would wait in vain once the
broker is back."""

SILENT = 10.0
"""Seconds for which no events are sent after one had to be waited for."""


def connect(relay: Relay) -> None:
    """Have the workers of this app return soon, those that serve the relay's queues."""
    relay.app.steps["consumer"].add(Returning)


class Returning(bootsteps.StartStopStep):
    """Starts with each connection to the broker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        return serves(consumer.app)

    def create(self, consumer: Any) -> None:
        set_connect_waits(consumer, WAITS)

    def start(self, consumer: Any) -> None:
        wrap_event_publish(consumer, spared)
        wrap_restore(consumer, restored)


def spared(publish: Callable[..., Any]) -> Callable[..., Any]:
    """Publishes events as `publish` does, but drops them for a while after one of them took long: they are only for
    show. Celery keeps those that failed, and tries them all again, one after another, in the loop that should consume.
    """
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


def restored(restore: Callable[..., Any]) -> Callable[..., Any]:
    """Puts what was taken and not begun back into its queue, as the connection is given up, but only while that works:
    each failure has to be waited for, and leases bring the messages back in any case."""
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
