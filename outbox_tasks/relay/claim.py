"""Hop 2, claim: lease due messages, group them into bundles, and send the bundles to the publish workers."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from uuid import uuid4

from outbox_tasks.database.schema import DEAD
from outbox_tasks.errors import BrokerUnreachable, DatabaseTooSlow
from outbox_tasks.model import BUNDLE_BYTES, Bundle, Ticket
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claimed import Claimed
from outbox_tasks.relay.store.traffic import Share
from outbox_tasks.settings import Settings

log = logging.getLogger("outbox_tasks.claim")

BATCH, LEAST = 1000, 50
"""Rows leased by one statement, shared among the destinations; but so many of each, or their bundles would be small."""

LONGEST = 5.0
"""Seconds after which a run of the claim ends, and the next one takes over."""

GATHERED = 25
"""A worker runs up to so many single messages together. If no more are due, that is few."""

BURY_EVERY = 5.0
"""Seconds between two looks for messages to unknown destinations. Just after many were sent, a look takes 10 ms."""

WAKING_OF_MANY = 4
"""If many messages are due, only one in so many bundles wakes the claim, for all keys of those before it."""

SPREAD = 4
"""While the workers are idle, a claim makes at least this many bundles, so that several workers share the messages."""


@dataclass(slots=True)
class Tally:
    """What one run of the claim did."""

    claimed: int = 0
    bundles: int = 0
    dead: int = 0
    held_back: bool = False
    """It left destinations out, because the publish workers had enough to do."""
    waiting: int = 0
    """How many messages were queued for the publish workers when it last asked, at most."""
    buried: list[Claimed] = field(default_factory=list)
    """Messages that it made dead letters: no attempts left, too old or too large, or an unknown destination."""
    again: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many leases had run out, by destination and cause: see `Claimed.cause`."""


def claim(store: Store, send: Callable[[Sequence[Bundle]], None], waiting: Callable[[], int]) -> Tally:
    """Claim until nothing is due, the publish workers have enough to do, or `LONGEST` is over.

    `send` enqueues bundles. `waiting` returns how many messages are queued for the publish workers. If `send` raises
    `BrokerUnreachable`, this releases the leases of the batch and raises it too.
    """
    settings, tally = store.settings, Tally()
    began = time.monotonic()
    deadline = began + LONGEST
    while settings.destinations:
        queued = tally.waiting = waiting()
        most = store.traffic.pace.most(queued)
        wanted = _wanted(store, queued, most)
        tally.held_back = len(wanted) < len(settings.destinations)
        if not wanted or not _claim_batch(store, send, wanted, tally, idle=not queued):
            break
        if time.monotonic() > deadline:
            break
    if settings.destinations and not tally.held_back:
        _bury(store, tally)
    store.traffic.count_again()
    seconds = time.monotonic() - began
    facts = {"claimed": tally.claimed, "bundles": tally.bundles, "dead": tally.dead, "seconds": round(seconds, 4)}
    # An idle relay claims again and again: nobody needs to read that.
    level = logging.INFO if tally.claimed or tally.dead else logging.DEBUG
    text = "claimed %d messages in %d bundles, %d dead, in %.3f s"
    log.log(level, text, tally.claimed, tally.bundles, tally.dead, seconds, extra=facts)
    return tally


def _bury(store: Store, tally: Tally) -> None:
    try:
        unroutable = store.bury_unroutable(BURY_EVERY)
    except DatabaseTooSlow as error:
        log.warning("messages to unknown destinations were not looked for: %s", error)
        return
    tally.buried += unroutable
    tally.dead += len(unroutable)


def _wanted(store: Store, queued: int, most: int) -> dict[str, int]:
    """How many messages to claim of each destination, while `queued` of at most `most` messages wait for the publish
    workers.

    Each destination has its own share, so a flood to one starves nobody. When the workers have enough to do, the claim
    takes only messages of destinations with little due: they go first.
    """
    settings = store.settings
    room = most - queued
    # More, if that makes the bundles of a flood larger. Many small ones could wait for longer than their leases.
    batch = max([BATCH, *(SPREAD * settings.flood_bundle_of(name) for name in settings.destinations)])
    # With less room the bundles would be small, and small bundles cost the workers too much.
    if room >= min(batch, max(1, most // 4)):
        share = max(1, min(room, max(batch, LEAST * len(settings.destinations))) // len(settings.destinations))
        return dict.fromkeys(settings.destinations, share)
    # The workers don't work; or no other destination could go first.
    if queued > 2 * settings.max_in_flight or len(settings.destinations) == 1:
        return {}
    return {name: settings.bundle_size_of(name) for name in settings.destinations.keys() - store.traffic.flooding}


def _claim_batch(
    store: Store, send: Callable[[Sequence[Bundle]], None], wanted: Mapping[str, int], tally: Tally, *, idle: bool
) -> bool:
    """Claim one batch and send it to the broker. Returns whether more may be due."""
    lease = str(uuid4())
    shares = store.traffic.admit(wanted, lease)
    if not shares:
        return False
    sizes = {name: share.size for name, share in shares.items()}
    filled: set[str] = set()

    def pack(rows: Sequence[Claimed]) -> list[Bundle]:
        filled.update(_note_filled(store, shares, Counter(row.destination for row in rows)))
        flooding = store.traffic.flooding
        made = bundled(store.settings, _due(rows), lease, spread=SPREAD if idle else 1, flooding=flooding)
        return _marked(list(made), shares, Counter(row.destination for row in rows))

    tries = {name for name, share in shares.items() if share.probe}
    rows, bundles = store.claim(sizes, lease, pack, tries)
    store.traffic.unused(shares, Counter(row.destination for row in rows), lease)
    _hand_on(store, send, bundles)
    store.traffic.pace.sent(len(bundles))
    due = _due(rows)
    if log.isEnabledFor(logging.DEBUG):
        _log_each(rows, bundles)
    _count(tally, rows, len(due), len(bundles))
    return bool(filled) or any(row.superseded for row in rows)


def _due(rows: Iterable[Claimed]) -> list[Claimed]:
    return [row for row in rows if row.status != DEAD and not row.superseded]


def _note_filled(store: Store, shares: Mapping[str, Share], found: Mapping[str, int]) -> set[str]:
    """The destinations that filled their share, so that more may be due. Notes them for the next claim too, and those
    of which it has not looked at all messages with keys."""
    told = {name for name, share in shares.items() if not share.bounded}
    filled = {name for name in told if found[name] >= shares[name].size}
    store.traffic.flooding = store.traffic.flooding - shares.keys() | filled | told & store.unread
    return filled


def _hand_on(store: Store, send: Callable[[Sequence[Bundle]], None], bundles: list[Bundle]) -> None:
    """Send the bundles to the broker. If it refuses, release them all. A bundle that arrived all the same finds at its
    begin that its lease is gone, and stops."""
    try:
        send(bundles)
    except BrokerUnreachable:
        together: dict[str, list[Ticket]] = defaultdict(list)
        for bundle in bundles:
            together[bundle.lease] += bundle.tickets
        for lease, tickets in together.items():
            store.release(lease, tickets)
        raise


def _count(tally: Tally, rows: Sequence[Claimed], due: int, bundles: int) -> None:
    dead = [row for row in rows if row.status == DEAD]
    tally.claimed += due
    tally.bundles += bundles
    tally.again.update((row.destination, row.cause) for row in rows if row.cause is not None)
    tally.buried += dead
    tally.dead += len(dead)


def _log_each(rows: Iterable[Claimed], bundles: Iterable[Bundle]) -> None:
    leases = {ticket.id: bundle.lease for bundle in bundles for ticket in bundle.tickets}
    for row in _due(rows):
        lease = leases[row.id]
        facts = {"message_id": row.id, "event_type": row.event_type, "destination": row.destination, "lease": lease}
        text = "message %s (%s) to %s claimed after %d attempts, lease %s"
        log.debug(text, row.id, row.event_type, row.destination, row.attempts, lease, extra=facts)


def _marked(bundles: list[Bundle], shares: Mapping[str, Share], found: Mapping[str, int]) -> list[Bundle]:
    """Mark the last bundle of each destination that may have more due: the worker that delivers it wakes the claim."""
    last = {bundle.destination: n for n, bundle in enumerate(bundles)}
    for name, n in last.items():
        share = shares[name]
        bundles[n] = replace(bundles[n], probe=share.probe, gather=bundles[n].gather and not share.probe)
        if found[name] >= share.size and not (share.probe or share.metered):
            bundles[n] = replace(bundles[n], more=True)
    return bundles


def bundled(
    settings: Settings,
    rows: Iterable[Claimed],
    lease: str,
    *,
    spread: int = SPREAD,
    flooding: Container[str] = (),
) -> Iterator[Bundle]:
    """Group leased rows into bundles of one destination and priority, in the order of insertion. Messages of one key
    stay together, whatever their priority."""
    together: dict[tuple[str, int], list[Claimed]] = defaultdict(list)
    for row in rows:
        if row.alone:
            yield Bundle(row.destination, lease, (_ticket(row),), more=row.key is not None)
        else:
            together[row.destination, row.priority if row.key is None else 0].append(row)
    spread = ceil(spread / max(1, len(together)))
    for (destination, priority), due in together.items():
        most = settings.bundle_size_of(destination)
        much = destination in flooding or len(due) > max(most, GATHERED)
        lane = 2 - priority if much or priority < 0 else 0
        size = min(most, ceil(len(due) / spread))
        if destination in flooding:
            most = settings.flood_bundle_of(destination)
            size = min(most, max(size, len(due) // SPREAD))
        packed = list(_packed(due, size, most))
        # When these have arrived, the next messages of their keys are due. Nobody else wakes the claim then.
        keyed = [n for n, some in enumerate(packed) if any(row.key is not None for row in some)]
        waking = {*keyed[:: -WAKING_OF_MANY if much else -1]}
        for n, some in enumerate(packed):
            tickets = tuple(map(_ticket, some))
            # A worker may fetch `GATHERED` messages of this size with one statement.
            gather = most == 1 and not settings.per_message and _bytes(some) <= BUNDLE_BYTES // GATHERED
            yield Bundle(destination, lease, tickets, more=n in waking, gather=gather, lane=lane)


def _ticket(row: Claimed) -> Ticket:
    return Ticket(row.id, row.attempts, row.event_type)


def _packed(rows: Sequence[Claimed], size: int, most: int) -> Iterator[list[Claimed]]:
    """Bundles of about `size` rows, with at most `most` rows and `BUNDLE_BYTES`. The rows of a key stay together."""
    bundle: list[Claimed] = []
    weight = 0
    for run in _runs(rows):
        more = _bytes(run)
        too_many = len(bundle) >= size or len(bundle) + len(run) > most
        if bundle and (too_many or weight + more > BUNDLE_BYTES):
            yield bundle
            bundle, weight = [], 0
        bundle += run
        weight += more
    if bundle:
        yield bundle


def _bytes(rows: Iterable[Claimed]) -> int:
    return sum(row.size for row in rows)


def _runs(rows: Iterable[Claimed]) -> Collection[list[Claimed]]:
    """The rows, grouped by key. A row without a key is a group of its own."""
    runs: dict[object, list[Claimed]] = {}
    for row in rows:
        runs.setdefault(row.seq if row.key is None else row.key, []).append(row)
    return runs.values()
