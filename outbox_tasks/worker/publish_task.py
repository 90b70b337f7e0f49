"""The publish task: one message, and Celery's own retry."""

from __future__ import annotations

import logging
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject, Retry

from outbox_tasks.broker.names import PUBLISH_TASK
from outbox_tasks.errors import AttemptFailed, BrokerUnreachable, DatabaseUnavailable, DeadLetter, NotSettled
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.publish import publish
from outbox_tasks.relay.retry import backoff
from outbox_tasks.settings import PUBLISH_QUEUE
from outbox_tasks.worker.listener import TaskListener
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)


def add_publish(resources: Resources, common: dict[str, Any]) -> None:
    """Add the publish task to the app."""
    listener = TaskListener(resources)

    @resources.app.task(
        name=PUBLISH_TASK,
        home=PUBLISH_QUEUE,
        bind=True,
        Request="outbox_tasks.worker.requests:PublishRequest",
        max_retries=None,  # the attempts in the database decide when a message is dead, not Celery's count
        soft_time_limit=resources.given.soft_time_limit,
        time_limit=resources.given.hard_time_limit,
        throws=(DeadLetter, DatabaseUnavailable),
        **common,
    )
    def outbox_publish(
        self: Task, event_type: str, destination: str, attempt: int, token: str, *, more: bool = False
    ) -> str:
        try:
            published = publish(
                resources.store,
                resources.publishers,
                destination,
                token,
                listener,
                by_celery=resources.tasks_may_wait,
            )
        except NotSettled:
            # A retry might begin again: a database that crashes forgets its last begins. It would send the message
            # twice, and nothing would say why. The lease brings the message back, with the cause on it.
            raise
        except DatabaseUnavailable as error:
            # The retry can still begin, within the lease.
            raise self.retry(exc=error, countdown=backoff(resources.settings, self.request.retries + 1)) from error
        if more or (published is not None and published.more):
            wake_claim(resources)
        if published is None:
            raise Ignore(f"message {self.request.id} is not ours any more")
        return _conclude(self, resources, published.verdict)


def wake_claim(resources: Resources) -> None:
    """More is due now. Beat would notice it a little later."""
    try:
        resources.broker.wake_claim()
    except BrokerUnreachable as error:
        log.warning("could not wake the claim: %s", error)


def _conclude(task: Task, resources: Resources, verdict: Verdict) -> str:
    """End the task as its verdict says. The message has been settled before."""
    message = verdict.message
    match verdict.step:
        case Step.DEAD:
            raise DeadLetter(id=message.id, attempt=message.attempts, code=verdict.code, error=verdict.error)
        case Step.LATER | Step.OUTAGE:
            # Nothing is sent: the table brings the message back. The exception lets Celery and Flower show a retry.
            raise Retry(f"{verdict.code}", when=verdict.wait)
        case Step.RETRY:
            return _retry(task, resources, verdict)
        case _:
            return str(verdict.step)


def _retry(task: Task, resources: Resources, verdict: Verdict) -> str:
    """Let Celery retry. The lease already covers the wait: if the task gets lost, the message is claimed again."""
    message, token = verdict.message, verdict.token or ""
    try:
        raise task.retry(
            args=(message.event_type, message.destination, message.attempts, token),
            kwargs={},
            exc=AttemptFailed(code=verdict.code, error=verdict.error),
            countdown=verdict.wait,
        )
    except Reject as refused:
        # The broker did not take the retry. Then the lease runs out once the wait is over.
        facts = {"message_id": message.id, "destination": message.destination, "lease": token}
        text = "message %s to %s goes back to the table, lease %s: its retry was refused: %s"
        log.warning(text, message.id, message.destination, token, refused.reason, extra=facts)
        resources.store.leases.give_back([token], verdict.wait)
        raise Retry(f"{verdict.code}", when=verdict.wait) from refused
