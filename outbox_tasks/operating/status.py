"""The state of an outbox for people: what is wrong, what waits, who is at work, how much is queued."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.operating import health, overview
from outbox_tasks.operating.health import Problem
from outbox_tasks.operating.overview import Destinations, DestinationStatus, Overview
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import DRAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.text import many, moment, number, some, span

if TYPE_CHECKING:
    from celery import Celery

    from outbox_tasks.broker.broker import Broker

PATIENCE = 2.0
"""Seconds that the broker has to say how much is queued, since a busy machine takes its time. Everything else comes
from the database."""

STATES = {
    "closed": "in service", "refuses": "refuses everything", "open": "circuit open", "trying": "being tried",
    "paused": "paused", "unknown": "unknown",
}  # fmt: skip
"""The states of a destination, as `DestinationStatus.state` names them, in words."""

NAMED = 5
"""Destinations that are named; the others are counted."""


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
    def processes(self) -> int:
        """How many processes send: those of the live workers that serve singles or drains."""
        workers = self.seen.heartbeats.alive
        return sum(one.facts.get("concurrency") or 0 for one in workers if {PUBLISH_QUEUE, DRAIN_QUEUE} & {*one.queues})


def read(store: Store, queues: Queues, bound: int = overview.BOUND) -> Status:
    """Read all of it. What goes beyond the bound is estimated. Raises `DatabaseUnavailable` or `SchemaMissing`."""
    queued = queues.ask()
    problem = health.slow(store)
    seen = overview.read(store, bound)
    archived, estimated = overview.archived(store)
    problems = [*filter(None, [problem]), *health.judge(store.settings, seen)]
    return Status(problems, seen, queued(), archived, estimated)


def why_not_in_order(name: str, one: DestinationStatus) -> str | None:
    """Why a destination is paused, refuses everything or has its circuit open, or how its last sends failed; and what
    waits for it."""
    facts = one.breaker
    if facts["state"] == "paused":
        why = f": {facts['paused_why']}" if facts["paused_why"] else ""
        return f"{name} is paused by {facts['paused_by']} since {moment(facts['paused_at'])}{why}{waits(one)}"
    failed = f"{many(facts['failures'], 'send')} in a row failed: {facts.get('error_code')}: {facts.get('error')}"
    if not one.in_service:
        tried = f"next try in {span(max(0.0, facts['next_try']))}" if facts["state"] == "open" else "being tried"
        return f"{name}: circuit open for {span(facts['open_for'])}, {tried}: {failed}{waits(one)}"
    if one.refused:
        return f"{name} refuses everything{_codes(one, 'dead', 'retrying')}: {_refusals(one)}{waits(one)}"
    return f"{name} is in service, but {failed}" if facts["failures"] else None


def _refusals(one: DestinationStatus) -> str:
    within = f"in the last {one.refused_within} min"
    return f"{many(one.refused, 'send')} failed {within}, and {one.arrived or 'none'} arrived"


def waits(one: DestinationStatus) -> str:
    """How many wait, and for how long."""
    parts = []
    if one.waiting:
        count = many(one.waiting, "message", number(one.waiting, estimated=_about(one, "pending", "retrying")))
        oldest = max((age for age in (one.oldest, one.waited) if age is not None), default=None)
        since = f", the oldest for {span(oldest)}" if oldest is not None else ""
        parts.append(f"{count} {'waits' if one.waiting == 1 else 'wait'}{since}")
    if dead := one.states["dead"]:
        count = number(dead, estimated=_about(one, "dead"))
        since = f", the first for {span(one.dead_for)}" if one.dead_for is not None else ""
        parts.append(f"{count} {'is' if dead == 1 else 'are'} dead{since}")
    return "".join(f"; {part}" for part in parts)


def _about(one: DestinationStatus, *states: str) -> bool:
    return not one.estimated.isdisjoint(states)


def _codes(one: DestinationStatus, *states: str) -> str:
    """The errors of the messages in these states, the most frequent first."""
    counts: Counter[str] = Counter()
    for state in states:
        counts.update(one.codes[state])
    return f" ({some([code for code, _ in counts.most_common()])})" if counts else ""


def dead_letters_wait(destinations: Destinations) -> str | None:
    """So many dead letters wait for a person: where, why, and for how long."""
    dead = {name: one for name, one in destinations.items() if one.states["dead"]}
    if not dead:
        return None
    counts = {name: one.states["dead"] for name, one in dead.items()}
    count, about = sum(counts.values()), any(_about(one, "dead") for one in dead.values())
    letters = many(count, "dead letter", number(count, estimated=about))
    worst = sorted(dead, key=lambda name: (-counts[name], name))
    where = [
        f"{name} {number(counts[name], estimated=_about(dead[name], 'dead'))}{_codes(dead[name], 'dead')}"
        for name in worst
    ]
    first = max(one.dead_for or 0.0 for one in dead.values())
    waits = "waits" if count == 1 else "wait"
    least = "at least " if overview.cut(destinations) else ""
    return f"{least}{letters} {waits} for a person, the first for {span(first)}: {some(where, NAMED)}"


def keys_held_up(name: str, count: int) -> str:
    """A destination has so many keys that a dead message holds up."""
    return f"{name} has keys that a dead message holds up: {count:,}"


def feed_state(failing: float | None, age: float, stale_after: float) -> str:
    """How a feed is, in words. `failing`: seconds since its source fails. `age`: of its oldest row."""
    if failing is not None:
        return f"fails for {span(failing)}"
    return "overdue" if age > stale_after else "in service"


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
        silent = "not known: the broker gave no answer"
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
