"""Finds handed-over tasks that their broker has lost, so that they don't wait for their deadline; and lets those wait
on that the broker still has, so that a long queue is not filled with copies.

The claim asks before it claims. A mistake costs a copy that does not run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from outbox_tasks.broker.task_broker import TaskBroker
from outbox_tasks.database.activity import LATE
from outbox_tasks.errors import BrokerUnreachable, DatabaseTooSlow
from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.store import Store
from outbox_tasks.settings.destination import Destination
from outbox_tasks.worker.resources import Resources

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks."""

SOON = 1.5
"""So many times that ahead, a task that would be sent again is asked about: before the next look."""

SURE = 2.0
"""A task that was handed over less than so many seconds before a look may be between the queue and its run."""

AT_ONCE = 10_000
"""Tasks that one statement changes."""

SLACK = 20
"""So many tasks, or a tenth, may be between the queue and their runs while the queue is counted as long."""


def look_before_claims(resources: Resources) -> None:
    """Let the claims of an app's workers look for lost tasks."""
    looks = PerProcess(lambda: LostTasks(resources.store, partial(TaskBroker, settings=resources.settings)))

    def close() -> None:
        if (lost_tasks := looks.take()) is not None:
            lost_tasks.close()

    resources.before_claim.append(lambda: looks.get().look())
    resources.before_close.append(close)


@dataclass(slots=True)
class Memory:
    """What the last look at a destination saw."""

    canary: frozenset[str] | None = None
    at: datetime | None = None
    """When it was, by the database's clock."""
    empty_at: dict[str, datetime] = field(default_factory=dict)
    """The same, by queue, if that was empty."""
    heads: dict[str, datetime] = field(default_factory=dict)
    """By queue, when the task at its front was handed over."""


class LostTasks:
    """Looks at the handed-over tasks of all `celery://` destinations."""

    def __init__(self, store: Store, broker_of: Callable[[Destination, str], TaskBroker]) -> None:
        self._store, self._broker_of = store, broker_of
        self._destinations = {n: d for n, d in store.settings.destinations.items() if d.scheme == "celery"}
        self._brokers: dict[str, TaskBroker] = {}
        self._memories: dict[str, Memory] = {name: Memory() for name in self._destinations}
        shortest = min((d.confirm_within for d in self._destinations.values()), default=EVERY)
        self._every = min(EVERY, shortest / 2)
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
            "supervised/handed_over.sql", asked=json.dumps(asked), soon=SOON * self._every, late=LATE
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
            broker = self._brokers[name] = self._broker_of(destination, outbox)
        if emptied := self._emptied(name, broker, now):
            self._end(destination, None, emptied, 0.0, "the broker was emptied, or is new")
            self._memories[name].empty_at.clear()
            return
        for row in queues:
            if row.queue is not None:
                self._look_at_queue(destination, broker, row)

    def _emptied(self, name: str, broker: TaskBroker, now: datetime) -> datetime | None:
        """Whether the broker has lost what it got before this time: our key is gone; or it has none of the tokens that
        the last look saw, so somebody made it anew, and what came since that look may be there."""
        memory, found = self._memories[name], broker.canary()
        before, memory.canary, memory.at = (memory.canary, memory.at), found, now
        if found is None:
            return None
        if not found:
            return now
        seen, at = before
        return at if seen and not seen & found else None

    def _look_at_queue(self, destination: Destination, broker: TaskBroker, row: Any) -> None:
        first = broker.first(row.queue)  # what was in front of it has been taken by now
        waiting, held = broker.waiting(row.queue)
        # A worker that does not supervise may have taken the task: it says nothing, and nothing is lost.
        if row.heard and held is not None and self._look_before(destination, row.queue, first, held):
            return  # what is due again now must not wait on
        empty_at = self._memories[destination.name].empty_at
        if waiting or held or held is None or not row.heard:
            empty_at.pop(row.queue, None)
        else:
            if row.queue in empty_at:
                self._end(destination, row.queue, empty_at[row.queue], SURE, f"queue {row.queue} is empty")
            empty_at[row.queue] = row.now
        # Without knowing what workers hold, any queue that is not empty counts as long: such brokers keep their tasks.
        expected = row.count - max(SLACK, row.count // 10) if held is not None else 1
        if row.ending and waiting and waiting + (held or 0) >= expected:
            waits = {"soon": SOON * self._every, "within": destination.confirm_within}
            self._all("supervised/wait_on.sql", **self._of(destination, row.queue), **waits)

    def _look_before(self, destination: Destination, queue: str, first: str | None, held: int) -> bool:
        """A queue is in order. So what was handed over before the task at its front is with a worker, or lost. Tasks of
        priorities are not in order, and one look is not enough: a worker may be just beginning a task. Returns whether
        some are lost."""
        heads = self._memories[destination.name].heads
        last = heads.pop(queue, None)
        if first is None:
            return False
        parameters = {**self._of(destination, queue), "first": first, "last": last, "sure": SURE}
        for found in self._store.ask("supervised/overtaken.sql", **parameters):
            if last is not None and found.count > held:
                self._end(destination, queue, last, SURE, f"queue {queue} has gone past them")
                return True
            if found.head is not None:
                heads[queue] = found.head
        return False

    def _end(self, destination: Destination, queue: str | None, before: datetime, sure: float, why: str) -> None:
        parameters = {**self._of(destination, queue), "before": before, "sure": sure}
        if count := self._all("supervised/end_waits.sql", **parameters):
            log.warning("%s, and %d tasks of %s did not begin: they are sent again", why, count, destination.name)

    def _of(self, destination: Destination, queue: str | None) -> dict[str, Any]:
        return {"destination": destination.name, "queue": queue, "made": destination.queue}

    def _all(self, verb: str, **parameters: Any) -> int:
        total = 0
        while True:
            [[changed]] = self._store.ask(verb, **parameters, most=AT_ONCE)
            total += int(changed)
            if changed < AT_ONCE:
                return total
