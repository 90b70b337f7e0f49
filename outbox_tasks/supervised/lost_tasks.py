"""Finds out whether a Redis that has handed-over tasks was emptied: then they are sent again before their deadline.

It looks before a claim. A mistake costs a copy that does not run.
"""

from __future__ import annotations

import logging
import time

from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.broker.task_broker import app_of, canary, plant_canary
from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.store import Store
from outbox_tasks.text import without_secrets
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between two looks."""

TASKS_A_STATEMENT = 10_000
"""Tasks that one statement changes at most."""


def look_before_claims(resources: Resources) -> None:
    """Let the claims of an app's workers look for lost tasks."""
    looks = PerProcess(lambda: LostTasks(resources.store))

    def close() -> None:
        if (lost_tasks := looks.take()) is not None:
            lost_tasks.close()

    resources.before_claim.append(lambda: looks.get().look())
    resources.before_close.append(close)


class LostTasks:
    """Looks into the brokers of all `celery://` destinations that have handed-over tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        destinations = store.settings.destinations
        self._apps = {n: app_of(d, store.settings) for n, d in destinations.items() if d.scheme == "celery"}
        self._seen: dict[str, tuple[frozenset[str], float]] = {}
        """By destination, what its key held at the last look, and when that was."""
        self._next = 0.0

    def close(self) -> None:
        """Close the connections to the brokers."""
        for app in self._apps.values():
            app.close()

    def look(self) -> None:
        """Look, if it is time for that. Raises `DatabaseUnavailable`."""
        now = time.monotonic()
        if not self._apps or now < self._next:
            return
        self._next = now + LOOK_SECONDS
        for row in self._store.ask("supervised/waiting.sql", names=list(self._apps)):
            app = self._apps[row.destination]
            try:
                self._look_at(row.destination, app, canary(str(row.outbox), row.destination), now)
            except app.trouble as error:
                reason = without_secrets(str(error), app.pinned_broker)
                log.debug("could not look for lost tasks of %s: %s", row.destination, reason)

    def _look_at(self, name: str, app: PinnedCelery, key: str, now: float) -> None:
        """There are three cases.

        1. Our key is there, with a token that the last look has seen: the broker has lost nothing.
        2. Our key is gone: all that was handed over until now is lost.
        3. Our key has none of the tokens that the last look has seen. Somebody has emptied the broker and made the key
           anew since then. Tasks that came after the last look may be there."""
        with app.producer_or_acquire() as producer:
            tokens = plant_canary(producer, key)
        if tokens is None:  # nobody knows
            return
        former, looked = self._seen.get(name, (tokens, now))
        self._seen[name] = tokens, now
        if not tokens:
            self._end(name, 0.0)
        elif not former & tokens:
            self._end(name, time.monotonic() - looked)

    def _end(self, name: str, age: float) -> None:
        total, count = 0, TASKS_A_STATEMENT
        while count == TASKS_A_STATEMENT:
            count = self._store.ask("supervised/end_waits.sql", name=name, age=age, most=TASKS_A_STATEMENT)[0].count
            total += count
        if total:
            log.warning("the broker of %s was emptied, or is new: %d tasks are sent again", name, total)
