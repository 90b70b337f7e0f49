"""How a publish task of Celery delivers, and how it ends: with a result, a retry or a failure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from celery import Task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from outbox_tasks.errors import AttemptFailed, BrokerUnreachable, DatabaseTooSlow, DatabaseUnavailable, DeadLetter
from outbox_tasks.model import Bundle, Step, Verdict
from outbox_tasks.relay.deliver import Listener, deliver, halved
from outbox_tasks.relay.retry import backoff
from outbox_tasks.signals import breaker_opened, dead_letter, key_blocked, settled
from outbox_tasks.text import one_line, redacted
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)


def deliver_in(task: Task, resources: Resources, bundle: Bundle) -> list[Verdict]:
    """Deliver a bundle in its task. If the database can't begin it, Celery retries the task, within the lease."""
    # A single message whose task was tried more often than the message was begun gets all the time there is.
    unhurried = len(bundle.tickets) == 1 and task.request.retries > bundle.tickets[0].attempt
    listener = _TaskListener(task, resources)
    try:
        store = resources.store
    except DatabaseUnavailable as error:
        listener.not_begun(bundle, error)
        raise
    return deliver(store, resources.publishers, bundle, listener, unhurried=unhurried)


class _TaskListener(Listener):
    """Tells the log and the receivers of our signals, and turns trouble with the database into Celery's terms."""

    def __init__(self, task: Task, resources: Resources) -> None:
        self._task, self._resources = task, resources
        self.retries_by_celery = resources.tasks_may_wait

    def no_slot(self) -> None:
        self._resources.slots_full.note()

    def not_begun(self, bundle: Bundle, error: DatabaseUnavailable) -> None:
        wait = backoff(self._resources.settings, self._task.request.retries + 1)
        smaller = None
        if isinstance(error, DatabaseTooSlow):
            with suppress(DatabaseUnavailable):  # then it is slow at everything
                smaller = halved(self._resources.store, bundle)
        args = smaller and (smaller.destination, smaller.lease, [ticket[:3] for ticket in smaller.tickets])
        raise self._task.retry(args=args, exc=error, countdown=wait) from error

    def not_settled(self, bundle: Bundle, error: Exception) -> None:
        if isinstance(error, SoftTimeLimitExceeded):
            reason = "the messages were sent, and the time limit came before they were settled"
            url = redacted(self._resources.settings.database_url or "")
            raise DatabaseUnavailable(url=url, reason=reason) from error

    def breaker_opened(self, bundle: Bundle, code: str | None, error: str | None) -> None:
        breaker_opened.send(sender=self._resources.app, destination=bundle.destination, code=code, error=error)

    def dead(self, bundle: Bundle, verdict: Verdict) -> None:
        report_dead(self._resources, bundle.destination, verdict)

    def settled(self, bundle: Bundle, verdicts: Sequence[Verdict], seconds: float) -> None:
        settled.send(sender=self._resources.app, bundle=bundle, verdicts=verdicts, seconds=seconds)


def report_dead(resources: Resources, destination: str, verdict: Verdict) -> None:
    """Tell the log and the receivers of our signals that a message is dead, and if its key waits for it."""
    ticket, code = verdict.ticket, verdict.code
    id, key = ticket.id, ticket.key
    facts = {
        "destination": destination, "message_id": id, "event_type": ticket.event_type, "key": key,
        "attempts": ticket.attempt, "code": code,
    }  # fmt: skip
    text = "message %s (%s) to %s is dead after attempt %d: %s"
    log.warning(text, id, one_line(ticket.event_type), destination, ticket.attempt, code, extra=facts)
    dead_letter.send(sender=resources.app, **facts, error=verdict.error)
    if key is not None and resources.settings.dead_blocks(destination):
        log.warning("dead message %s (%s) holds up the key %r of %s", id, code, key, destination, extra=facts)
        key_blocked.send(sender=resources.app, destination=destination, key=key, message_id=id, code=code)


def wake_claim(resources: Resources, bundle: Bundle) -> None:
    """Wake the claim if more was due than it took, before the queue is empty. Beat would do it a little later."""
    if bundle.more:
        try:
            resources.broker.wake_claim()
        except (BrokerUnreachable, SoftTimeLimitExceeded) as error:
            log.warning("could not wake the claim: %s", error)


def conclude(task: Task, resources: Resources, bundle: Bundle, verdict: Verdict) -> str:
    """End the task of one message as its verdict says. Its row has been settled before."""
    ticket = verdict.ticket
    match verdict.step:
        case Step.SENT:
            return "sent"
        case Step.HANDED:
            return "handed over"
        case Step.DISCARDED:
            return f"discarded: {verdict.code}"
        case Step.STALE | Step.BEHIND:
            raise Ignore(f"message {ticket.id} is not ours any more")
        case Step.DEAD:
            raise DeadLetter(id=ticket.id, attempt=ticket.attempt, code=verdict.code, error=verdict.error)
        case Step.RELEASE | Step.OUTAGE:
            raise Retry(f"{verdict.code}", when=verdict.wait)
        case Step.RETRY:
            return _retry(task, resources, bundle, verdict)


def _retry(task: Task, resources: Resources, bundle: Bundle, verdict: Verdict) -> str:
    """Let Celery retry. The lease already covers the wait: if the task gets lost, the row is claimed again."""
    ticket, wait, lease = verdict.ticket, verdict.wait, verdict.lease or bundle.lease
    try:
        raise task.retry(
            args=(ticket.event_type, bundle.destination, ticket.attempt, lease),
            kwargs={},
            exc=AttemptFailed(code=verdict.code, error=verdict.error),
            countdown=wait,
        )
    except Reject as refused:
        # The broker did not take the retry. Release the row, due when the retry would have been.
        facts = {"message_id": ticket.id, "destination": bundle.destination, "lease": lease}
        text = "message %s to %s goes back to the table, lease %s: its retry was refused: %s"
        log.warning(text, ticket.id, bundle.destination, lease, refused.reason, extra=facts)
        resources.store.release(lease, [ticket], wait)
        raise Retry(f"{verdict.code}", when=wait) from refused
