"""The state of an outbox for people: what is wrong, what waits, who is at work, how much is queued."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any

from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.operating import health, overview
from outbox_tasks.operating.health import Problem
from outbox_tasks.operating.overview import Overview
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import PUBLISH_QUEUE, Settings
from outbox_tasks.text import many, number

if TYPE_CHECKING:
    from celery import Celery

    from outbox_tasks.broker.broker import Broker

PATIENCE = 0.5
"""Seconds that the broker has to say how much is queued. Everything else comes from the database."""

STATES = {"closed": "in service", "open": "left alone", "trying": "being tried", "paused": "paused"}
"""The states of a destination, as `breaker.states` names them, in words."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of an outbox at one moment."""

    problems: list[Problem]
    seen: Overview
    queues: dict[str, int] | str
    """How much is queued, by queue, or the reason why nobody knows."""
    archived: int
    estimated: bool
    """Whether `archived` is an estimate."""

    @property
    def publish_processes(self) -> int:
        """How many processes the live publish workers have."""
        return sum(worker.facts.get("concurrency") or 0 for worker in self.seen.heartbeats.consumers(PUBLISH_QUEUE))


def read(store: Store, queues: Queues, bound: int = overview.BOUND) -> Status:
    """Read all of it. What goes beyond the bound is estimated. Raises `DatabaseUnavailable` or `SchemaMissing`."""
    queued = queues.ask()
    problem = health.slow(store)
    seen = overview.read(store, bound)
    archived, estimated = overview.archived(store)
    problems = [*filter(None, [problem]), *health.judge(store.settings, seen)]
    return Status(problems, seen, queued(), archived, estimated)


def why_not_in_order(name: str, facts: Mapping[str, Any], zone: tzinfo | None = None) -> str | None:
    """Why a destination is paused or left alone, or how its last sends failed. `facts`: its row of `breaker.states`.
    `zone`: of the times; None: this machine's."""
    state = facts["state"]
    if state == "paused":
        why = f": {facts['paused_why']}" if facts["paused_why"] else ""
        return (
            f"{name} is paused by {facts['paused_by']} since {facts['paused_at'].astimezone(zone):%Y-%m-%d %H:%M}{why}"
        )
    if not facts["failures"]:
        return None
    until = f" until {facts['pause_until'].astimezone(zone):%H:%M:%S}" if state == "open" else ""
    failed = f"{many(facts['failures'], 'send')} in a row failed: {facts['error_code']}: {facts['error']}"
    return f"{name} is {STATES[state]}{until}: {failed}"


def dead_letters_wait(count: int, *, estimated: bool) -> str:
    """So many dead letters wait for a person."""
    letters = many(count, "dead letter", number(count, estimated=estimated))
    return f"{letters} {'waits' if count == 1 else 'wait'} for a person"


def keys_held_up(name: str, count: int) -> str:
    """A destination has so many keys that a dead message holds up."""
    return f"{name} has keys that a dead message holds up: {count:,}"


class Queues:
    """Asks the broker how much is queued, in a thread: a broker that hangs does not hold up the rest."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self._settings = settings
        self._app = app
        self._thread: threading.Thread | None = None

    def ask(self) -> Callable[[], dict[str, int] | str]:
        """Start to ask. The function returned gives the lengths, or the reason why there are none."""
        if self._app is None and self._settings.broker_url is None:
            return lambda: "not asked: OUTBOX_BROKER_URL is not set"
        silent = f"the broker did not answer within {PATIENCE:g} s"
        if self._thread is not None and self._thread.is_alive():
            return lambda: silent  # who asks again and again has one thread that waits, not many
        found: dict[str, int] = {}
        self._thread = thread = threading.Thread(target=self._ask, args=(found,), name="outbox-queues", daemon=True)
        thread.start()

        def answer() -> dict[str, int] | str:
            thread.join(PATIENCE)
            return silent if thread.is_alive() or not found else found

        return answer

    def _ask(self, found: dict[str, int]) -> None:
        with suppress(BrokerUnreachable):
            found.update(self._broker.lengths())

    @cached_property
    def _broker(self) -> Broker:
        from outbox_tasks.broker.broker import Broker
        from outbox_tasks.broker.pinned import PinnedCelery

        url = str(self._settings.broker_url)
        app = self._app or PinnedCelery("outbox_tasks.status", broker=url, settings=self._settings, timeout=PATIENCE)
        return Broker(app, self._settings, timeout=PATIENCE)
