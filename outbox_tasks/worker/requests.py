"""Celery's requests of the relay's tasks: what the main process of a worker knows of a task that runs in its pool."""

from __future__ import annotations

from typing import Any

from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from outbox_tasks.worker.dead_processes import end_leases_of_dead_processes

NOTHING_CLAIMED = "nothing was due"
"""The result of a claim that did nothing."""


class LeasingRequest(Request):
    """Ends the leases of a process of the pool that has ended: only the main process knows that for sure."""

    def on_failure(self, exc_info: Any, *args: Any, **keywords: Any) -> Any:
        """Celery calls this when the task failed, or its process ended or is about to be killed."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, WorkerLostError | TimeLimitExceeded) and self.worker_pid:
            end_leases_of_dead_processes(self.task.app.outbox_relay.settings, self.worker_pid)
        return super().on_failure(exc_info, *args, **keywords)


class ClaimRequest(LeasingRequest):
    """Sends its events when it ends, unless it did nothing: such claims run once a second, and would fill every list of
    tasks."""

    def send_event(self, type: str, **fields: Any) -> None:
        """Celery calls this as the claim starts and ends."""
        listening = self.eventer
        if (
            type == "task-started"
            or fields.get("result") == repr(NOTHING_CLAIMED)
            or not (listening and listening.enabled)
        ):
            return
        received = {"root_id": self.root_id, "parent_id": self.parent_id, "eta": None, "expires": None}
        listening.send("task-received", uuid=self.id, name=self.name, args="()", kwargs="{}", retries=0, **received)
        listening.send("task-started", uuid=self.id)
        listening.send(type, uuid=self.id, **fields)


class PublishRequest(LeasingRequest):
    """Runs even if somebody revoked its id. That is the message's id, so the worker would refuse later attempts too."""

    def revoked(self) -> bool:
        """Forget that somebody revoked its id."""
        state.revoked.discard(self.id)
        return bool(super().revoked())
