"""Hop 2, claim: lease what is due, group it into bundles, hand them to the publish workers."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from uuid import uuid4

from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.model import Bundle, Ticket
from outbox_tasks.schema import DEAD
from outbox_tasks.settings import Settings
from outbox_tasks.store import Claimed, Store

log = logging.getLogger(__name__)

SPREAD = 4
"""When the workers have nothing to do, little is split this many ways, so that several of them share it."""


@dataclass(slots=True)
class Tally:
    """What one run of the claim did."""

    claimed: int = 0
    bundles: int = 0
    dead: int = 0
    held_back: bool = False
    """More may be due, but the publish workers have enough to do."""


def claim(store: Store, send: Callable[[Sequence[Bundle]], None], waiting: Callable[[], int]) -> Tally:
    """Claim until nothing is due, the publish workers have enough, or it is time to let a fresh claim take over.

    `send` enqueues bundles; `waiting` tells how many messages are queued for the publish workers. Raises
    `BrokerUnreachable`, after the leases that could not be handed on were given back.
    """
    settings, tally = store.settings, Tally()
    deadline = time.monotonic() + settings.claim_expires
    least = min(settings.claim_batch, max(1, settings.max_in_flight // 4))
    while settings.destinations:
        queued = waiting()
        room = settings.max_in_flight - queued
        if room < least:
            # Not for crumbs: they would become small bundles, and cost the workers more than they carry.
            tally.held_back = True
            break
        size = min(room, settings.claim_batch)
        if not _claim_batch(store, send, size, tally, idle=not queued) or time.monotonic() > deadline:
            break
    if not tally.held_back:
        tally.dead += len(store.bury_unroutable())
    if tally.claimed or tally.dead:
        log.info("claimed %d messages in %d bundles, %d dead", tally.claimed, tally.bundles, tally.dead)
    return tally


def _claim_batch(
    store: Store, send: Callable[[Sequence[Bundle]], None], size: int, tally: Tally, *, idle: bool
) -> bool:
    """Claim and hand on one batch; true if there may be more."""
    lease = str(uuid4())
    alone = store.admit(lease)
    shares = _shares(store.settings, size, alone)
    if not shares:
        return False
    rows = store.claim(shares, lease)
    due = [row for row in rows if row.status != DEAD]
    found = Counter(row.destination for row in rows)
    more = any(count >= shares[name] and name not in alone for name, count in found.items())
    for name in alone.keys() & shares.keys() - found.keys():
        store.untried(name, lease)
    bundles = list(bundled(store.settings, due, lease, spread=SPREAD if idle else 1))
    if more and bundles:
        # Whoever gets to the end of this batch wakes the claim again: later batches are still queued behind it.
        bundles[-1] = replace(bundles[-1], more=True)
    try:
        send(bundles)
    except BrokerUnreachable:
        # What did arrive after all finds its lease gone at begin, and stops.
        store.release(lease, [ticket for bundle in bundles for ticket in bundle.tickets])
        raise
    tally.claimed += len(due)
    tally.bundles += len(bundles)
    tally.dead += len(rows) - len(due)
    return more


def _shares(settings: Settings, size: int, alone: Mapping[str, bool]) -> dict[str, int]:
    """How much may be claimed of each destination, when some are left `alone`, but for a message to try them with.

    Each has its own share: a flood to one starves nobody. What a share leaves over, the next batch takes.
    """
    share = max(1, size // len(settings.destinations))
    return {name: 1 if name in alone else share for name in settings.destinations if alone.get(name, True)}


def bundled(settings: Settings, rows: Iterable[Claimed], lease: str, *, spread: int = SPREAD) -> Iterator[Bundle]:
    """The bundles for freshly leased rows: of one destination each, in the order of insertion."""
    together: dict[str, list[Ticket]] = defaultdict(list)
    for row in rows:
        ticket = Ticket(row.id, row.attempts, row.event_type)
        if row.alone:
            yield Bundle(row.destination, lease, (ticket,))
        else:
            together[row.destination].append(ticket)
    for destination, tickets in together.items():
        most = settings.bundle_size_of(destination)
        size = min(most, ceil(len(tickets) / spread))
        for start in range(0, len(tickets), size):
            yield Bundle(destination, lease, tuple(tickets[start : start + size]), gather=most == 1)
