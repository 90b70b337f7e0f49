"""Whether an outbox is healthy. This asks only its database, because every kind of trouble shows there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from outbox_tasks.broker.names import queues_of
from outbox_tasks.database.activity import CROSSED, LATE
from outbox_tasks.database.connection import SLOW_TRIP
from outbox_tasks.errors import DatabaseUnavailable, OutboxError
from outbox_tasks.operating import overview
from outbox_tasks.operating.heartbeats import Heartbeat, Heartbeats
from outbox_tasks.operating.overview import Destinations, Overview
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import GRACE
from outbox_tasks.relay.store.feeds import FeedState
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.text import span

BOUND = 100
"""Messages of a destination and state that are looked at: enough to find the oldest."""

NAMED = 3
"""Workers that are named; the others are counted."""

NAMED_UNKNOWN = 10
"""Unknown destinations that are named; the others are counted."""

SILENT = 60.0
"""Seconds for which messages are due and none is sent, before that counts. One send takes less."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person, or a supervisor, must see to."""

    code: str
    """For programs: database, slow, tables, crossed, stale, silent, unknown, claim, late, beat, queue, feed, name, task
    or worker."""
    about: str
    """Which destination, queue, feed, task or worker; may be empty."""
    text: str
    """For people."""

    @property
    def sentence(self) -> str:
        """The text as a sentence of its own."""
        return f"{self.text[0].upper()}{self.text[1:]}."


def examine(settings: Settings, worker: str | None = None) -> list[Problem]:
    """The problems of the whole relay, or of one worker, by its node's name."""
    store = Store.connect(settings)
    try:
        store.check_version()
        if problem := slow(store):
            return [problem]
        seen = overview.read(store, BOUND, estimate=False)
    except OutboxError as error:
        code = "database" if isinstance(error, DatabaseUnavailable) else "tables"
        return [Problem(code, "", str(error))]
    finally:
        store.close()
    if worker is not None:
        return list(judge_worker(seen.heartbeats, worker))
    return list(judge(settings, seen))


def slow(store: Store) -> Problem | None:
    """Whether a round trip to the database takes too long: then nothing else is worth waiting for."""
    seconds = store.round_trip()
    if seconds < SLOW_TRIP:
        return None
    return Problem("slow", "", f"the database is slow: a round trip takes {seconds:.1f} s")


def judge(settings: Settings, seen: Overview) -> Iterator[Problem]:
    """All problems. A destination that is paused, refuses everything, or has its circuit open is not a problem here:
    alerts tell somebody."""
    yield from _crossed(seen.heartbeats)
    yield from _shared_names(seen.heartbeats)
    yield from _queues(settings, seen.heartbeats)
    yield from _beat(settings, seen.heartbeats)
    yield from _claims_and_sends(settings, seen)
    yield from stale(settings, seen.destinations)
    yield from unknown(seen.destinations)
    yield from feeds(settings, seen.feeds)
    for task, workers in seen.heartbeats.unknown_tasks.items():
        yield Problem("task", task, f"{', '.join(workers[:NAMED])} got the task {task}, and does not know it")


def judge_worker(heartbeats: Heartbeats, name: str) -> Iterator[Problem]:
    """The problems of one worker."""
    worker = next((worker for worker in heartbeats.workers if worker.name == name), None)
    if worker is None:
        known = ", ".join(worker.name for worker in heartbeats.workers) or "none"
        yield Problem("worker", name, f"{name} has no heartbeat; those that have: {known}")
    elif not worker.alive:
        yield Problem("worker", name, f"{name} was last seen {span(worker.age)} ago")


def _crossed(heartbeats: Heartbeats) -> Iterator[Problem]:
    if (crossed := heartbeats.last.get(CROSSED)) is not None:
        broker, owner = crossed.facts.get("broker"), crossed.facts.get("owner")
        fact = f"the broker {broker} belongs to another outbox: {owner}"
        yield Problem("crossed", "", f"{fact}. A relay of this outbox found its stamp there {span(crossed.age)} ago")


def _shared_names(heartbeats: Heartbeats) -> Iterator[Problem]:
    for name in heartbeats.shared_names:
        yield Problem("name", name, f"several workers are called {name}: start each with a name of its own (-n)")


def _queues(settings: Settings, heartbeats: Heartbeats) -> Iterator[Problem]:
    if heartbeats.shared_names:
        return  # one of these workers may consume the queue
    for queue in queues_of(settings):
        if not heartbeats.consumers(queue):
            last = heartbeats.last_consumer(queue)
            seen = f": {last.name} was last seen {span(last.age)} ago" if last else ""
            yield Problem("queue", queue, f"no worker consumes {queue}{seen}")


def _beat(settings: Settings, heartbeats: Heartbeats) -> Iterator[Problem]:
    if heartbeats.consumers(CLAIM_QUEUE) and heartbeats.beat_stopped(settings):
        ran = _ran(heartbeats.last.get("beat"))
        yield Problem("beat", "", f"beat's claim {ran}: is beat running? Retries wait for it")


def _claims_and_sends(settings: Settings, seen: Overview) -> Iterator[Problem]:
    if seen.heartbeats.claims_late:
        text = "claims time out: the database does not lease messages in time; outbox-tasks doctor names the session"
        yield Problem("late", "", text)
    if _longest_wait(seen.destinations) > LATE and seen.heartbeats.claims_stopped(settings):
        yield Problem("claim", "", f"messages are due, and a claim {_ran(seen.heartbeats.last.get('claim'))}")
    else:
        yield from silent(seen.destinations, seen.heartbeats)


def stale(settings: Settings, destinations: Destinations) -> Iterator[Problem]:
    """Destinations whose oldest message has been due for longer than `stale_after`."""
    for name, one in destinations.items():
        if one.configured and one.stale(settings):
            yield Problem("stale", name, f"{name}: the oldest message has been due for {span(one.oldest or 0.0)}")


def feeds(settings: Settings, states: Iterable[FeedState]) -> Iterator[Problem]:
    """Feeds whose source fails, or whose oldest row has waited, for longer than `stale_after`."""
    for state in states:
        if (state.failing or 0.0) > settings.stale_after:
            fails = f"fails for {span(state.failing or 0.0)}: {state.error}"
            yield Problem("feed", state.name, f"the feed {state.name} {fails}")
        elif state.waiting and state.age > settings.stale_after:
            yield Problem("feed", state.name, f"the feed {state.name} has a row that waits for {span(state.age)}")


def unknown(destinations: Destinations) -> Iterator[Problem]:
    """Destinations that have due messages, and are not configured here."""
    due = {name: one.oldest for name, one in destinations.items() if not one.configured and one.oldest is not None}
    for name, oldest in [*due.items()][:NAMED_UNKNOWN]:
        waits = f"messages have been due for {span(oldest)}, and no such destination is configured here"
        yield Problem("unknown", name, f"{name}: {waits}; after {span(GRACE)} they are dead letters")
    if (more := len(due) - NAMED_UNKNOWN) > 0:
        least = "at least " if overview.cut(destinations) else ""
        yield Problem("unknown", "", f"{least}{more} more destinations have due messages, and are not configured here")


def silent(destinations: Destinations, heartbeats: Heartbeats) -> Iterator[Problem]:
    """Messages are claimed and due, and workers are there to send them, but none is sent."""
    due, sent, claimed = _longest_wait(destinations), heartbeats.age("publish"), heartbeats.age("claim")
    workers = sorted({one.name for queue in (PUBLISH_QUEUE, DRAIN_QUEUE) for one in heartbeats.consumers(queue)})
    if due <= SILENT or (sent is not None and sent <= SILENT) or not workers or claimed is None or claimed > SILENT:
        return
    last = "nothing has ever been sent" if sent is None else f"nothing has been sent for {span(sent)}"
    who = ", ".join(workers[:NAMED]) + (f" and {len(workers) - NAMED} more" if len(workers) > NAMED else "")
    text = f"messages have been due for {span(due)}, and {last}, though there is {who} to do it"
    yield Problem("silent", "", text)


def _longest_wait(destinations: Destinations) -> float:
    """Seconds for which the oldest message of the destinations in service has been due."""
    return max((one.oldest or 0.0 for one in destinations.values() if one.configured and one.in_service), default=0.0)


def _ran(last: Heartbeat | None) -> str:
    return "has never run" if last is None else f"last ran {span(last.age)} ago"
