"""Claim: count what is due of each destination, and fan it out. Few messages become singles, each a publish task of its
own; of many, drains take what they can send."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from uuid import uuid4

from outbox_tasks.errors import BrokerUnreachable, DatabaseTooSlow
from outbox_tasks.model import Single, Slot
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Buried, Due, Share

log = logging.getLogger("outbox_tasks.claim")

QUEUED_AT_MOST, QUEUED_A_SECOND = 200, 4
"""So many singles may wait in the publish queue in all, and so many for each second of a lease: slow workers too can
begin these before the leases run out."""

MANY_DUE = 500
"""If so many messages of a destination are due, as many drains are started as may be at work. Of fewer, one drain is
enough."""

SLOW_SENDS_LOOKED_FOR_SECONDS = 0.25

PROBE_REACH = 100
"""A probe looks among so many messages for one that has never failed."""

BURY_SECONDS = 5.0
"""Messages to unknown destinations are looked for so often: just after many messages were sent, a look takes 10 ms."""

Send = Callable[[Sequence[Single], Sequence[Slot]], None]


@dataclass(slots=True)
class Tally:
    """What one claim did."""

    singles: int = 0
    drains: int = 0
    queued: int = 0
    """How many singles waited in the publish queue when it began."""
    held_back: bool = False
    """It left messages, because the publish queue is long."""
    buried: list[Buried] = field(default_factory=list)
    expired: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many messages were taken back since the last claim, because their leases or runs had run out; by destination
    and cause."""

    @property
    def did_something(self) -> bool:
        """Whether the claim sent or buried any message."""
        return bool(self.singles or self.drains or self.buried)

    def __str__(self) -> str:
        return f"claimed {self.singles} singles, started {self.drains} drains, {len(self.buried)} dead"


def claim(store: Store, send: Send, queued: Callable[[], int], pace: Pace) -> Tally:
    """Fan out what is due. `send` enqueues the tasks; `queued` returns how many singles wait in the publish queue. If
    `send` raises `BrokerUnreachable`, the leases are given back, and this function raises it too."""
    tally = Tally()
    began = time.monotonic()
    if store.settings.destinations:
        _fan_out(store, send, queued, pace, tally)
        if store.claims.keep_house():  # leases or waits that are over have made messages due
            _fan_out(store, send, queued, pace, tally)
    if pace.is_time_to_bury():
        _bury(store, tally)
    tally.expired, store.claims.expired = store.claims.expired, Counter()
    # An idle relay claims again and again: nobody needs to read that.
    level = logging.INFO if tally.did_something else logging.DEBUG
    facts = {"singles": tally.singles, "drains": tally.drains, "seconds": round(time.monotonic() - began, 4)}
    log.log(level, "%s, in %.3f s", tally, facts["seconds"], extra=facts)
    return tally


def _fan_out(store: Store, send: Send, queued: Callable[[], int], pace: Pace, tally: Tally) -> None:
    waiting = queued()
    most = min(QUEUED_AT_MOST, int(QUEUED_A_SECOND * store.settings.queue_lease))
    singles, slots = _take_and_reserve(store, pace, max(0, most - waiting), tally)
    if singles or slots:
        _enqueue(store, send, singles, slots)
    tally.queued = max(tally.queued, waiting)
    tally.singles += len(singles)
    tally.drains += len(slots)


class Pace:
    """What the claims of one process remember: which destinations are quick, and when they last looked for what is
    rare."""

    def __init__(self, quick: Iterable[str] = ()) -> None:
        """`quick`: destinations that are known to be quick."""
        self._quick = set(quick)
        self._tried: set[str] = set()
        self._buried_at = self._slow_looked_at = -inf

    def is_time_to_bury(self) -> bool:
        """Whether it is time to look for messages to unknown destinations. If so, the next time is later."""
        now = time.monotonic()
        if now < self._buried_at + BURY_SECONDS:
            return False
        self._buried_at = now
        return True

    def singles_allowed(self, store: Store, due: Sequence[Due]) -> dict[str, int]:
        """How many more singles of these destinations may be on their way; no entry: any number.

        A slow destination must not hold all processes. So there are three cases, looked at each quarter of a second:

        1. Nobody knows yet whether a destination is quick: it has at most as many singles as may send at once.
        2. All singles of an earlier claim have ended: the destination is quick, and may have any number.
        3. A send to a quick destination takes long: it is not quick any more, and its singles that wait in the broker's
           queue are given back.
        """
        several = len(store.settings.destinations) > 1
        unsure = {row.destination for row in due if several and row.destination not in self._quick}
        now = time.monotonic()
        if not unsure and (not several or now < self._slow_looked_at + SLOW_SENDS_LOOKED_FOR_SECONDS):
            return {}
        self._slow_looked_at = now
        outstanding = store.traffic.outstanding()
        slow = {name for name, (_, count) in outstanding.items() if count} & self._quick
        if slow:
            self._quick -= slow
            store.claims.hold_back(sorted(slow))
        allowed: dict[str, int] = {}
        for name in unsure | (slow & {row.destination for row in due}):
            leases = outstanding.get(name, (0, 0))[0]
            if name in self._tried and not leases:
                self._quick.add(name)
            self._tried.add(name)
            if name not in self._quick:
                allowed[name] = max(0, store.traffic.slots(name) - leases)
        return allowed


def _take_and_reserve(store: Store, pace: Pace, room: int, tally: Tally) -> tuple[list[Single], list[Slot]]:
    """Take what goes singly, and reserve slots for drains. `room`: how many more singles the publish queue may have.

    For each destination that is not shut there are three cases. 1. A drain is at work, or more is due than may travel
    singly: drains take all of it, and more of them are started if that is needed. 2. All that is due fits: each message
    becomes a single. 3. Not all of it fits, and `singles` is "all": as many as fit become singles, and one of these
    wakes the next claim.
    """
    due = store.claims.due(MANY_DUE)
    random.shuffle(due)  # so that no destination is always the last one
    reachable = [row for row in due if not row.shut]
    allowed = pace.singles_allowed(store, reachable) if reachable else {}
    shares = _probes(store, [row for row in due if row.probe])
    drains: dict[str, tuple[int, int]] = {}
    partly_taken: set[str] = set()
    for row in reachable:
        name, limit = row.destination, store.limits.of(row.destination).singles
        if limit != "all" and (row.drains or row.total > min(limit, room)):
            if more := _more_drains(store, row, allowed.get(name)):
                drains[name] = more
            continue
        most = min(row.total, room, allowed.get(name, row.total))
        if most < row.total or name in allowed:  # what is written meanwhile finds no room, either
            partly_taken.add(name)
        tally.held_back = tally.held_back or room < row.total
        if most := store.traffic.grant(name, most):
            shares[name] = _shared(row, most)
            room -= most
    singles = _take(store, shares) if shares else []
    return _waking(singles, partly_taken), store.claims.reserve_slots(drains) if drains else []


def _more_drains(store: Store, row: Due, allowed: int | None) -> tuple[int, int] | None:
    """How many drains of a destination may be at work in all, and how many are to be started; None: none is.
    `allowed`: how many more, unless the destination is quick."""
    slots = store.traffic.slots(row.destination)
    if allowed is not None:
        slots = min(slots, row.drains + allowed)
    wanted = slots - row.drains if row.total >= MANY_DUE else min(1, slots) - row.drains
    return (slots, wanted) if wanted > 0 else None


def _take(store: Store, shares: Mapping[str, Share]) -> list[Single]:
    """Take messages singly, and give back what was granted for more than there were."""
    singles = store.claims.take_singly(shares)
    count = Counter(single.destination for single in singles)
    for name, share in shares.items():
        if share.token is None:
            store.traffic.return_unused(name, share.keyless + share.held + share.new - count[name])
        elif not count[name]:
            store.traffic.untried(name, share.token)
    return singles


def _probes(store: Store, due: Sequence[Due]) -> dict[str, Share]:
    """What to take of destinations whose circuit is open and which one message may try now, if possible one that has
    never failed."""
    if not due:
        return {}
    tokens = {row.destination: str(uuid4()) for row in due}
    granted = store.traffic.probe(tokens)
    shares = {}
    for row in due:
        if row.destination in granted:
            token = tokens[row.destination]
            if row.new:
                shares[row.destination] = Share(0, 0, PROBE_REACH, token)
            elif row.keyless or row.alone:
                shares[row.destination] = Share(1, 0, 0, token)
            else:
                shares[row.destination] = Share(0, PROBE_REACH, 0, token)
    return shares


def _shared(row: Due, most: int) -> Share:
    """How many messages of each kind make `most`."""
    keyless = min(most, row.keyless + row.alone)
    held = min(most - keyless, row.held)
    return Share(keyless, held, min(most - keyless - held, row.new))


def _waking(singles: list[Single], names: set[str]) -> list[Single]:
    """Of these destinations more is due than was taken. So of the singles of each, the one in the middle wakes the
    claim when it has been sent."""
    places: dict[str, list[int]] = {}
    for place, single in enumerate(singles):
        if single.destination in names:
            places.setdefault(single.destination, []).append(place)
    for of_destination in places.values():
        middle = of_destination[len(of_destination) // 2]
        singles[middle] = singles[middle]._replace(more=True)
    return singles


def _enqueue(store: Store, send: Send, singles: Sequence[Single], slots: Sequence[Slot]) -> None:
    """Send the tasks to the broker. If it refuses, give all leases and slots back. A task that arrived all the same
    finds at its begin that its lease, or its slot, is gone."""
    try:
        send(singles, slots)
    except BrokerUnreachable:
        store.leases.give_back([single.token for single in singles])
        for slot in slots:
            store.claims.end_drain(slot)
        raise


def _bury(store: Store, tally: Tally) -> None:
    try:
        tally.buried += store.claims.bury()
    except DatabaseTooSlow as error:
        log.warning("messages to unknown destinations were not looked for: %s", error)
