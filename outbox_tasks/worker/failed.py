"""Ends a worker that failed. Its supervisor can then start another."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from celery import bootsteps
from celery.platforms import EX_FAILURE

from outbox_tasks.worker.resources import serves

log = logging.getLogger(__name__)


class EndFailed(bootsteps.StartStopStep):
    """After an unrecoverable error, Celery reads the last results of the pool. It waits for good if it can't."""

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
