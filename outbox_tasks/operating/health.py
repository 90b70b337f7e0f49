"""Whether an outbox is in order, judged by its database: what goes wrong shows there, whatever the cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outbox_tasks.database.activity import LATE
from outbox_tasks.database.connection import SLOW_TRIP
from outbox_tasks.errors import DatabaseUnavailable, OutboxError
from outbox_tasks.operating import overview
from outbox_tasks.operating.overview import Census, Sign, Standing
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import GRACE
from outbox_tasks.settings import CLAIM_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.text import span

BOUND = 100
"""Of each destination and state so many messages are looked at: enough for the one that has waited longest."""

NAMED = 3
"""Workers that are named; the others are counted."""

SILENT = 60.0
"""Seconds for which messages are due and none is sent, before that counts: one that is being sent takes less."""

QUEUES = (CLAIM_QUEUE, PUBLISH_QUEUE, MAINTAIN_QUEUE)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person, or a supervisor, must see to."""

    code: str
    """For programs: database, slow, tables, stale, silent, unknown, claim, beat, queue, name or worker."""
    about: str
    """Which destination, queue or worker; may be empty."""
    text: str
    """For people."""


def examine(settings: Settings, worker: str | None = None) -> list[Finding]:
    """What is not in order: of all, or of one worker, by its node's name."""
    store = Store.connect(settings)
    try:
        store.check_version()
        if trip := slow(store):
            return [trip]
        seen = overview.take(store, BOUND, estimate=False)
    except OutboxError as error:
        code = "database" if isinstance(error, DatabaseUnavailable) else "tables"
        return [Finding(code, "", str(error))]
    finally:
        store.close()
    return list(judge(settings, seen) if worker is None else judge_worker(seen, worker))


def slow(store: Store) -> Finding | None:
    """Whether the database takes so long for anything that nothing else is worth waiting for."""
    seconds = store.round_trip()
    if seconds < SLOW_TRIP:
        return None
    return Finding("slow", "", f"the database is slow: a round trip takes {seconds:.1f} s")


def judge(settings: Settings, seen: Census) -> Iterator[Finding]:
    """What is not in order. A destination that is paused, or left alone, is none of it: somebody knows of that."""
    served = {queue for worker in seen.workers if worker.age <= LATE for queue in worker.facts.get("queues", ())}
    shared = [worker.name for worker in seen.workers if worker.age <= LATE and worker.shared]
    for name in shared:
        yield Finding("name", name, f"several workers are called {name}: start each with a name of its own (-n)")
    for queue in QUEUES:
        if queue not in served and not shared:  # else nobody knows what all of them consume
            yield Finding("queue", queue, f"no worker consumes {queue}{_last_seen(seen, queue)}")
    if CLAIM_QUEUE in served:
        beat = seen.last("beat")
        # As long as there was a worker that would have run what it sends.
        alive = min(worker.age for worker in seen.workers if CLAIM_QUEUE in worker.facts.get("queues", ()))
        if beat is None or beat.age - alive > max(LATE, 10 * settings.claim_interval):
            yield Finding("beat", "", f"beat's claim {_ran(beat)}: is beat running? Retries wait for it")
    waiting = {name: one for name, one in seen.standings.items() if name in settings.destinations}
    waiting = {name: one for name, one in waiting.items() if seen.state(name) == "closed" and one.oldest is not None}
    claim, overdue = seen.last("claim"), max((one.oldest or 0.0 for one in waiting.values()), default=0.0)
    if overdue > LATE and (claim is None or claim.age > LATE):
        yield Finding("claim", "", f"messages are due, and a claim {_ran(claim)}")
    elif (silence := nobody_sends(settings, seen.standings, seen.troubled, seen.signs)) is not None:
        yield Finding("silent", "", silence)
    for name, one in waiting.items():
        if one.oldest is not None and one.oldest > settings.stale_after:
            yield Finding("stale", name, f"{name}: the oldest message has been due for {span(one.oldest)}")
    for name, one in seen.standings.items():
        if name not in settings.destinations and one.oldest is not None:
            waits = f"messages have been due for {span(one.oldest)}, and no such destination is configured here"
            yield Finding("unknown", name, f"{name}: {waits}; after {span(GRACE)} they are dead letters")


def nobody_sends(
    settings: Settings,
    standings: Mapping[str, Standing],
    troubled: Mapping[str, Mapping[str, Any]],
    signs: Sequence[Sign],
) -> str | None:
    """Messages are claimed and due, workers are there to send them, and nobody does; None if that is not so.

    Nothing is due of a destination that is paused or left alone.
    """
    open = [
        name
        for name in standings.keys() & settings.destinations.keys()
        if name not in troubled or troubled[name]["state"] == "closed"
    ]
    due = max((standings[name].oldest or 0.0 for name in open), default=0.0)
    ages = {sign.kind: sign.age for sign in signs if sign.kind != "worker"}
    sent, there = ages.get("publish"), [
        sign.name
        for sign in signs
        if sign.kind == "worker" and sign.age <= LATE and PUBLISH_QUEUE in sign.facts.get("queues", ())
    ]  # fmt: skip
    if due <= SILENT or (sent is not None and sent <= SILENT) or not there or ages.get("claim", SILENT + 1) > SILENT:
        return None
    last = "nothing has ever been sent" if sent is None else f"nothing has been sent for {span(sent)}"
    who = ", ".join(sorted(there)[:NAMED]) + (f" and {len(there) - NAMED} more" if len(there) > NAMED else "")
    return f"messages have been due for {span(due)}, and {last}, though there is {who} to do it"


def judge_worker(seen: Census, name: str) -> Iterator[Finding]:
    """What is not in order with this worker."""
    worker = next((worker for worker in seen.workers if worker.name == name), None)
    if worker is None:
        known = ", ".join(worker.name for worker in seen.workers) or "none"
        yield Finding("worker", name, f"{name} has no heartbeat; those that have: {known}")
    elif worker.age > LATE:
        yield Finding("worker", name, f"{name} was last seen {span(worker.age)} ago")


def _last_seen(seen: Census, queue: str) -> str:
    those = [worker for worker in seen.workers if queue in worker.facts.get("queues", ())]
    if not those:
        return ""
    last = min(those, key=lambda worker: worker.age)
    return f": {last.name} was last seen {span(last.age)} ago"


def _ran(sign: Sign | None) -> str:
    return "has never run" if sign is None else f"last ran {span(sign.age)} ago"
