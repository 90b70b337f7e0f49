"""The base class of the claim task. Beat sends a claim only if there may be something for it to do."""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import uuid4

from outbox_tasks.broker.names import BY_BEAT
from outbox_tasks.errors import OutboxError
from outbox_tasks.worker.base_task import RelayTask
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

SELDOM = 10.0
"""Seconds after which beat sends a claim even if nothing is due. A claim also notices that the broker was emptied, and
its run shows that beat and the claim worker are alive."""

BLIND = 30.0
"""Seconds for which beat sends each claim without asking, after the database did not answer: each try takes long."""

WITHOUT_ASKING = "beat sends each claim without asking whether anything is due: %s"


class ClaimTask(RelayTask):
    """A nudge sends a claim by other ways, and is never held up."""

    abstract = True

    resources: Resources
    _sent = float("-inf")
    _blind_until = 0.0

    def apply_async(self, *arguments: Any, **options: Any) -> Any:
        """Send it, unless beat asks for it and nothing is due."""
        if (options.get("headers") or {}).get(BY_BEAT) and not self._is_wanted():
            return self.AsyncResult(options.get("task_id") or str(uuid4()))
        result = super().apply_async(*arguments, **options)
        self._sent = time.monotonic()
        return result

    def _is_wanted(self) -> bool:
        now = time.monotonic()
        return now < self._blind_until or now >= self._sent + SELDOM or self._is_anything_due()

    def _is_anything_due(self) -> bool:
        try:
            found = self.resources.store.anything_due()
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
