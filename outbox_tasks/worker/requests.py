"""Celery's requests of the relay's tasks: what the main process of a worker knows of a task that runs in its pool."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing, suppress
from typing import Any

from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from outbox_tasks.errors import DatabaseUnavailable
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.processes import is_gone, neighbourhood
from outbox_tasks.settings import Settings

log = logging.getLogger(__name__)

PAUSES_SECONDS = (0.5, 4.0, 10.0)
"""Before each look for dead processes. Celery kills a process a moment after its time limit. The children of a worker
that was killed end a little after it. And the server may still run the last statement of a dead process, which locks
its rows meanwhile."""

NOTHING_CLAIMED = "nothing was due"
"""The result of a claim that did nothing."""


class LeasingRequest(Request):
    """Ends the leases of a process of the pool that has ended: only the main process knows that for sure."""

    def on_failure(self, exc_info: Any, *args: Any, **keywords: Any) -> Any:
        """Celery calls this when the task failed, or its process ended or is about to be killed."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError | TimeLimitExceeded):
            end_leases_of_dead_processes(self.task.app.outbox_relay.settings)
        return super().on_failure(exc_info, *args, **keywords)


class ClaimRequest(LeasingRequest):
    """Sends its events when it ends, unless it did nothing: such claims run once a second, and would fill every list of
    tasks."""

    def send_event(self, type: str, **fields: Any) -> None:
        """Celery calls this as the claim starts and ends."""
        events = self.eventer
        if type == "task-started" or fields.get("result") == repr(NOTHING_CLAIMED) or not (events and events.enabled):
            return
        received = {"root_id": self.root_id, "parent_id": self.parent_id, "eta": None, "expires": None}
        events.send("task-received", uuid=self.id, name=self.name, args="()", kwargs="{}", retries=0, **received)
        events.send("task-started", uuid=self.id)
        events.send(type, uuid=self.id, **fields)


class PublishRequest(LeasingRequest):
    """Runs even if somebody revoked its id. That is the message's id, so the worker would refuse later attempts too."""

    def revoked(self) -> bool:
        """Forget that somebody revoked its id."""
        state.revoked.discard(self.id)
        return bool(super().revoked())


def end_leases_of_dead_processes(settings: Settings) -> None:
    """End the leases of the dead processes of this host, so that their messages need not wait until the leases run out.
    In the background: the worker goes on meanwhile."""
    threading.Thread(target=_end_leases, args=(settings,), name="outbox-leases", daemon=True).start()


def _end_leases(settings: Settings) -> None:
    for pause in PAUSES_SECONDS:
        time.sleep(pause)
        # No connection stays open meanwhile: a process that the pool forks must not share it.
        with suppress(DatabaseUnavailable), closing(Store.connect(settings)) as store:
            for name in store.claims.holders(neighbourhood()):
                if is_gone(name) and (count := store.claims.recall(name)):
                    log.warning("the process %s is gone: %d leases end now", name, count)
