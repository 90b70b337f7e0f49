"""The base class of the claim task. Beat sends a claim only if there may be something for it to do."""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import uuid4

from outbox_tasks.broker.names import BY_BEAT, IN_TIME
from outbox_tasks.errors import OutboxError
from outbox_tasks.worker.base_task import RelayTask
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

SELDOM = 10.0
"""Seconds after which beat sends a claim even if nothing is due. A claim also notices that the broker was emptied, and
its run shows that beat and the claim worker are alive."""

BLIND = 30.0
"""Seconds for which beat sends each claim without asking, after the database did not answer: each try takes long."""

LEAST_WAIT = 0.05
"""Seconds between two claims for messages that were published to be due later: those in between share the second."""

WITHOUT_ASKING = "beat sends each claim without asking whether anything is due: %s"


class ClaimTask(RelayTask):
    """A nudge sends a claim by other ways, and is never held up."""

    abstract = True

    resources: Resources
    _sent = float("-inf")
    _blind_until = 0.0
    _returns_at = 0.0

    def apply_async(self, *arguments: Any, **options: Any) -> Any:
        """Send it, unless beat asks for it and nothing is due."""
        if (options.get("headers") or {}).get(BY_BEAT) and not self._is_wanted():
            return self.AsyncResult(options.get("task_id") or str(uuid4()))
        result = super().apply_async(*arguments, **options)
        if result is not None:
            self._sent = time.monotonic()
        return result

    def return_in_time(self) -> None:
        """After a claim of beat's, or of this: send the next one for the moment when a message is due, if that is
        before beat's next claim. It waits in the worker."""
        headers, now = self.request.headers or {}, time.monotonic()
        if not self.resources.tasks_may_wait:
            return
        if now < self._returns_at or not (headers.get(BY_BEAT) or headers.get(IN_TIME)):
            return
        wait = self.resources.store.until_next_due(self.resources.settings.claim_interval)
        if wait is not None:
            wait = max(wait, LEAST_WAIT)
            self._returns_at = now + wait
            super().apply_async(countdown=wait, headers={IN_TIME: True})

    def _is_wanted(self) -> bool:
        now = time.monotonic()
        return now < self._blind_until or now >= self._sent + SELDOM or self._is_anything_due()

    def _is_anything_due(self) -> bool:
        try:
            # A claim that beat sends now comes back for what is due before beat's next look.
            found = self.resources.store.anything_due(self.resources.settings.claim_interval)
        except OutboxError as error:
            # Once is enough: a beat may have no access to the database, and it need not.
            log.log(logging.DEBUG if self._blind_until > 0 else logging.WARNING, WITHOUT_ASKING, error)
        except Exception:
            log.exception(WITHOUT_ASKING, "an unforeseen error")
        else:
            self._blind_until = 0.0
            return found
        self._blind_until = time.monotonic() + BLIND
        return True
