"""Brings a worker back soon to a broker that was away or hung, and ends a worker that failed."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from celery import bootsteps
from celery.platforms import EX_FAILURE

from outbox_tasks.broker.internals import close_redis_in_pool, set_connect_waits
from outbox_tasks.worker.resources import ConsumerStep, serves

log = logging.getLogger(__name__)

PAUSES_SECONDS = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 5.0}
"""Between two tries to connect. kombu's own pauses grow to half a minute: too long once the broker is back."""


class ReconnectSoon(ConsumerStep):
    """Lets a worker consume again soon after an outage, without long pauses."""

    def create(self, consumer: Any) -> None:
        set_connect_waits(consumer, PAUSES_SECONDS)
        close_redis_in_pool(consumer)


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
