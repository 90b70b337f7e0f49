"""Finds handed-over tasks that their broker has lost: they are sent again before their deadline. Tasks that the broker
still has may wait beyond it, so that a long queue is not filled with copies.

It looks before a claim. A mistake costs a copy that does not run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from kombu import Producer

from outbox_tasks.broker.broker import queue_length
from outbox_tasks.broker.internals import redis_unacked
from outbox_tasks.broker.task_broker import app_of, canary, plant_canary
from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.errors import BrokerUnreachable, DatabaseTooSlow
from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import redacted, without_secrets
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 5.0
"""Seconds between two looks."""

LOOKS_AHEAD = 1.5
"""A look is about tasks whose deadline comes before so many looks."""

BEGIN_SECONDS = 2.0
"""Seconds that a task may be on its way from the queue to its run."""

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


@dataclass(slots=True)
class Memory:
    """What the last look at a destination has seen."""

    canary: frozenset[str] | None = None
    at: datetime | None = None
    """The time of the look, by the database's clock."""
    empty_at: dict[str, datetime] = field(default_factory=dict)
    """By queue, if it was empty: the time of the look."""


class TaskBroker:
    """Asks the broker of one destination. Every method raises `BrokerUnreachable`."""

    def __init__(self, destination: Destination, outbox: str, settings: Settings) -> None:
        self._app = app_of(destination, settings)
        self._key = canary(outbox, destination.name)

    def canary(self) -> frozenset[str] | None:
        """See `plant_canary`."""
        return self._ask(lambda producer: plant_canary(producer, self._key))

    def waiting(self, queue: str) -> tuple[int, int | None]:
        """How many tasks wait in a queue, and how many of all queues workers hold without having acknowledged them;
        None: nobody knows."""
        return self._ask(lambda producer: (queue_length(producer, queue), redis_unacked(producer.channel)))

    def close(self) -> None:
        """Close the connections."""
        self._app.close()

    def _ask(self, question: Callable[[Producer], T]) -> T:
        try:
            with self._app.producer_or_acquire() as producer:
                return question(producer)
        except self._app.trouble as error:
            url = self._app.pinned_broker
            raise BrokerUnreachable(url=redacted(url), reason=without_secrets(str(error).rstrip("."), url)) from error


class LostTasks:
    """Looks at the handed-over tasks of all `celery://` destinations."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._destinations = {n: d for n, d in store.settings.destinations.items() if d.scheme == "celery"}
        self._brokers: dict[str, TaskBroker] = {}
        self._memories: dict[str, Memory] = {name: Memory() for name in self._destinations}
        shortest = min((d.confirm_within for d in self._destinations.values()), default=LOOK_SECONDS)
        self._every = min(LOOK_SECONDS, shortest / 2)
        self._next = 0.0

    def close(self) -> None:
        """Close the connections to the brokers."""
        while self._brokers:
            self._brokers.popitem()[1].close()

    def look(self) -> None:
        """Look, if it is time for that. Raises `DatabaseUnavailable`."""
        now = time.monotonic()
        if not self._destinations or now < self._next:
            return
        self._next = now + self._every
        asked = [{"destination": name, "queue": each.queue} for name, each in self._destinations.items()]
        rows = self._store.ask(
            "supervised/handed_over.sql", asked=json.dumps(asked), soon=LOOKS_AHEAD * self._every, late=LATE_SECONDS
        )
        for name in self._memories.keys() - {row.destination for row in rows}:
            self._memories[name].empty_at.clear()
        for name in {row.destination for row in rows}:
            try:
                self._look_at(self._destinations[name], [row for row in rows if row.destination == name])
            except (BrokerUnreachable, DatabaseTooSlow) as error:
                self._memories[name].empty_at.clear()
                log.debug("could not look for lost tasks of %s: %s", name, error)

    def _look_at(self, destination: Destination, queues: list[Any]) -> None:
        name, now = destination.name, queues[0].now
        broker = self._brokers.get(name)
        if broker is None:
            outbox = str(self._store.ask("deliver/identity.sql")[0].identity)
            broker = self._brokers[name] = TaskBroker(destination, outbox, self._store.settings)
        if emptied := self._emptied(name, broker, now):
            self._end(destination, None, emptied, 0.0, "the broker was emptied, or is new")
            self._memories[name].empty_at.clear()
            return
        for row in queues:
            if row.queue is not None:
                self._look_at_queue(destination, broker, row)

    def _emptied(self, name: str, broker: TaskBroker, now: datetime) -> datetime | None:
        """The time before which the broker has lost all tasks; None: it has lost none, or nobody knows. There are three
        cases.

        1. Our key is there, with a token that the last look has seen: the broker has lost nothing.
        2. Our key is gone: all that was handed over until now is lost.
        3. Our key has none of the tokens that the last look has seen. Somebody has emptied the broker and made the key
           anew since then. Tasks that came after the last look may be there."""
        memory, tokens = self._memories[name], broker.canary()
        (earlier_tokens, earlier_look), memory.canary, memory.at = (memory.canary, memory.at), tokens, now
        if tokens is None:
            return None
        if not tokens:
            return now
        return earlier_look if earlier_tokens and not earlier_tokens & tokens else None

    def _look_at_queue(self, destination: Destination, broker: TaskBroker, row: Any) -> None:
        waiting, held = broker.waiting(row.queue)
        empty_at = self._memories[destination.name].empty_at
        # A worker that does not supervise may have taken the task. It says nothing, and nothing is lost.
        if waiting or held or held is None or not row.heard:
            empty_at.pop(row.queue, None)
        else:
            if row.queue in empty_at:
                self._end(destination, row.queue, empty_at[row.queue], BEGIN_SECONDS, f"queue {row.queue} is empty")
            empty_at[row.queue] = row.now
        # If nobody knows how many tasks workers hold, each queue that is not empty counts as long: such brokers keep
        # their tasks. Otherwise 20 tasks, or a tenth, may be on their way from the queue to their runs.
        expected = row.count - max(20, row.count // 10) if held is not None else 1
        if row.ending and waiting and waiting + (held or 0) >= expected:
            waits = {"soon": LOOKS_AHEAD * self._every, "within": destination.confirm_within}
            self._all("supervised/wait_on.sql", **self._of(destination, row.queue), **waits)

    def _end(self, destination: Destination, queue: str | None, before: datetime, sure: float, why: str) -> None:
        parameters = {**self._of(destination, queue), "before": before, "sure": sure}
        if count := self._all("supervised/end_waits.sql", **parameters):
            log.warning("%s, and %d tasks of %s did not begin: they are sent again", why, count, destination.name)

    def _of(self, destination: Destination, queue: str | None) -> dict[str, Any]:
        return {"destination": destination.name, "queue": queue, "made": destination.queue}

    def _all(self, verb: str, **parameters: Any) -> int:
        total = 0
        while True:
            [[changed]] = self._store.ask(verb, **parameters, most=TASKS_A_STATEMENT)
            total += int(changed)
            if changed < TASKS_A_STATEMENT:
                return total
