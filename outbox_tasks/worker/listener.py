"""Tells the log and the receivers of our signals what happens on the pipe."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outbox_tasks.model import UNKNOWN_DESTINATION, LeasedMessage, Verdict
from outbox_tasks.relay.settle import Listener
from outbox_tasks.relay.store.claims import Buried
from outbox_tasks.signals import breaker_opened, dead_letter, key_blocked, settled
from outbox_tasks.text import one_line
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)


class TaskListener(Listener):
    """For the tasks of a worker."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def circuit_opened(self, destination: str, code: str | None, error: str | None) -> None:
        breaker_opened.send(sender=self._resources.app, destination=destination, code=code, error=error)

    def dead(self, verdict: Verdict) -> None:
        message = verdict.message
        _dead(self._resources, message, message.attempts, verdict.code, verdict.error)

    def buried(self, message: Buried) -> None:
        """A claim has made a dead letter of a message to an unknown destination."""
        _dead(self._resources, message, 0, UNKNOWN_DESTINATION, message.error)

    def done(self, destination: str, lease: str, verdicts: Sequence[Verdict], seconds: float) -> None:
        app = self._resources.app
        settled.send(sender=app, destination=destination, lease=lease, verdicts=verdicts, seconds=seconds)


def _dead(
    resources: Resources, message: LeasedMessage | Buried, attempts: int, code: str | None, error: str | None
) -> None:
    """A message is a dead letter; say also if its key waits for it."""
    destination, key = message.destination, message.key
    facts = {
        "destination": destination, "message_id": message.id, "event_type": message.event_type, "key": key,
        "attempts": attempts, "code": code,
    }  # fmt: skip
    text = "message %s (%s) to %s is dead after attempt %d: %s"
    log.warning(text, message.id, one_line(message.event_type), destination, attempts, code, extra=facts)
    dead_letter.send(sender=resources.app, **facts, error=error)
    if key is not None and resources.settings.dead_blocks(destination):
        log.warning("dead message %s (%s) holds up the key %r of %s", message.id, code, key, destination, extra=facts)
        key_blocked.send(sender=resources.app, destination=destination, key=key, message_id=message.id, code=code)
