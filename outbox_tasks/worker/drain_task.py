"""The drain task: many messages of one destination."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery.worker import state

from outbox_tasks.broker.names import DRAIN_TASK
from outbox_tasks.errors import BrokerUnreachable, DatabaseUnavailable
from outbox_tasks.model import Slot
from outbox_tasks.relay.drain import drain_in_slot
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, PUBLISH_QUEUE
from outbox_tasks.settings.pipe import DRAIN_SECONDS
from outbox_tasks.worker.listener import TaskListener
from outbox_tasks.worker.publish_task import wake_claim
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

YIELDS_SECONDS = 0.02
"""A drain looks at most so often whether another task waits for its process."""


def add_drain(resources: Resources, common: dict[str, Any]) -> None:
    """Add the drain task to the app."""
    listener = TaskListener(resources)
    given = resources.given

    @resources.app.task(
        name=DRAIN_TASK,
        home=DRAIN_QUEUE,
        Request="outbox_tasks.worker.requests:LeasingRequest",
        soft_time_limit=DRAIN_SECONDS + given.soft_time_limit,
        time_limit=DRAIN_SECONDS + given.hard_time_limit,
        throws=(DatabaseUnavailable,),
        **common,
    )
    def outbox_drain(destination: str, token: str | None = None) -> str:
        if destination not in resources.settings.destinations:
            return "unknown destination"
        limit = resources.store.limits.of(destination)
        if token is None and limit.singles and "singles" in limit.changes:
            # A commit that did not know what a person has set has sent this drain. So the claim is needed.
            wake_claim(resources)
            return "its messages travel singly"
        slot = _slot(resources, destination, token)
        if slot is None:
            return "others are at work"
        task_waits = _task_waits(resources)
        drained = drain_in_slot(
            resources.store,
            resources.publishers,
            slot,
            listener,
            stop=lambda: _worker_stops() or task_waits(),
        )
        if drained.steps:  # something may have been committed after its last look
            wake_claim(resources)
        return str(drained)


def _slot(resources: Resources, destination: str, token: str | None) -> Slot | None:
    """The slot in which the drain works: the one that a claim has reserved, or a new one, if a commit has woken the
    drain."""
    store = resources.store
    if token is None:
        return store.claims.take_slot(destination, store.traffic.slots(destination))
    return store.claims.begin_drain(Slot(destination, token))


def _worker_stops() -> bool:
    """Whether this worker was told to stop. The processes of a prefork pool don't learn that."""
    return any(signal is not None and signal is not False for signal in (state.should_stop, state.should_terminate))


def _task_waits(resources: Resources) -> Callable[[], bool]:
    """Whether a task waits that this worker serves: then the drain makes room for it."""
    served = {CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE} & resources.app.amqp.queues.consume_from.keys()
    looked_at = time.monotonic()

    def waits() -> bool:
        nonlocal looked_at
        now = time.monotonic()
        if now < looked_at + YIELDS_SECONDS:
            return False
        looked_at = now
        try:
            return resources.broker.any_waits(served)
        except BrokerUnreachable:
            return False

    return waits
