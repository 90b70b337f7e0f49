"""What there is to see of an outbox: its destinations, its workers, and when what must run now and then ran last.

Read from the database alone, in a few round trips whose cost does not grow with the tables.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outbox_tasks.database import activity, claim_keys, slots
from outbox_tasks.operating import counts
from outbox_tasks.relay.store import Store

BOUND = 10_000
"""Up to so many messages of a destination and a state are counted; what is beyond it is estimated."""

PAGES = 1_000
"""For an estimate, so many pages of the table are read."""

KEYS = 1_000
"""So many keys of a destination are looked at for the one that has waited longest."""

MINUTES = 4
"""Rates are taken over this minute and so many before it."""

STATES = ("pending", "leased", "retrying", "scheduled", "dead")
"""Those of the view outbox_all, as far as they are not archived."""

FAILED = ("retry", "release", "outage", "dead")
"""Outcomes that are a failed send."""


Part = tuple[str, str]
"""A destination, and one of the parts in which its messages are counted: see `counts.DUE`."""


@dataclass(slots=True)
class Standing:
    """How many messages of a destination there are in each state, and how things go."""

    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    estimated: set[str] = field(default_factory=set)
    """The states of which not all were counted."""
    due: int = 0
    """Of them, how many could be claimed now, but for their order; estimated if `pending` is."""
    oldest: float | None = None
    """For how many seconds the message that has waited longest has been due. Of messages with a key: among the first
    `KEYS` keys, and only of those that no earlier one holds up."""
    held_up: int = 0
    """Of those keys, how many are held up by a dead message."""
    sent: float = 0.0
    """Messages a minute, in the last few minutes."""
    failed: float = 0.0
    """Sends a minute that failed, in the last few minutes."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A worker, or something that runs now and then, and when it was last seen."""

    name: str
    kind: str
    seen_at: datetime
    age: float
    """Seconds since then, by the database's clock."""
    facts: Mapping[str, Any]

    @property
    def shared(self) -> bool:
        """Whether several workers are called so: each overwrites what the other has said. See `activity.beat`."""
        return int(self.facts.get("met") or 0) > 1


@dataclass(frozen=True, slots=True)
class Census:
    """All of it, at one moment."""

    standings: Mapping[str, Standing]
    """By destination."""
    troubled: Mapping[str, Mapping[str, Any]]
    """Destinations in trouble, or paused: see `breaker.states`."""
    signs: Sequence[Sign]
    publishers: int
    """How many processes publish, or did within the last half minute."""

    @property
    def workers(self) -> list[Sign]:
        """Those seen within the last day that did not end in good order."""
        return [sign for sign in self.signs if sign.kind == "worker"]

    def last(self, kind: str) -> Sign | None:
        """When `claim`, `publish`, `beat` or `maintain` ran last."""
        return next((sign for sign in self.signs if sign.kind == kind), None)

    def state(self, destination: str) -> str:
        """As `breaker.states` has it: `closed` is in order."""
        return str(self.troubled[destination]["state"]) if destination in self.troubled else "closed"


def take(store: Store, bound: int = BOUND, *, estimate: bool = True) -> Census:
    """Look at all of it. `estimate`: what is beyond the bound too. Raises `DatabaseUnavailable` or `SchemaMissing`."""
    troubled = {row.name: dict(row._mapping) for row in store.traffic.states()}
    found = standings(store, bound, estimate=estimate, also=troubled)
    for name, outcomes in tallies(store).items():
        if name in found:
            found[name].sent = outcomes.get("sent", 0.0)
            found[name].failed = sum(outcomes.get(outcome, 0.0) for outcome in FAILED)
    return Census(found, troubled, heartbeats(store), publishers(store))


def standings(
    store: Store, bound: int = BOUND, *, estimate: bool = True, also: Iterable[str] = ()
) -> dict[str, Standing]:
    """By destination: those that are configured, and others that there are messages of."""
    t, configured = store.tables, store.settings.destinations
    names = sorted({*configured, *also, *(row[0] for row in store.rows(counts.present(t), {}) if row[0] is not None)})
    found = {name: Standing() for name in names}
    parts: dict[Part, list[Any]] = defaultdict(list)
    for row in store.rows(counts.counts(t), {"names": names, "bound": bound}):
        parts[row.destination, row.part].append(row)
    beyond = {part for part, rows in parts.items() if _fullest_lane(rows) >= bound}
    sampled = _sampled(store) if beyond and estimate else {}
    for part, rows in parts.items():
        _add(found[part[0]], part[1], rows, sampled.get(part, {}) if part in beyond else None)
    blocking = [{"destination": n, "blocks": n in configured and configured[n].on_dead == "block"} for n in names]
    for row in store.rows(counts.heads(t), {"blocking": json.dumps(blocking), "most": KEYS}):
        one = found[row.destination]
        one.held_up = row.held_up
        one.oldest = _longest(one.oldest, row.oldest)
    return found


def _add(one: Standing, part: str, rows: Iterable[Any], estimates: Mapping[str, int] | None) -> None:
    """Add what was counted in a part; and what there probably is, where it goes beyond the bound."""
    states: Counter[str] = Counter()
    for row in rows:
        states[row.state] += row.counted
        one.oldest = _longest(one.oldest, row.oldest)
    if estimates is not None:
        # What was counted is there in any case.
        states = states | Counter(estimates)
        one.estimated |= states.keys()
    if part == counts.KEYED:
        del states["dead"]  # they are counted among the dead
    if part in (counts.DUE, counts.KEYED):
        one.due += states["pending"] + (states["retrying"] if part == counts.DUE else 0)
    for state, count in states.items():
        one.states[state] += count


def _fullest_lane(rows: Iterable[Any]) -> int:
    lanes: Counter[int | None] = Counter()
    for row in rows:
        lanes[row.lane] += row.counted
    return max(lanes.values())


def _sampled(store: Store) -> dict[Part, dict[str, int]]:
    """How many messages there probably are in each part and state."""
    pages = store.rows(counts.pages(store.tables), {})[0][0]
    percent = min(100.0, 100.0 * PAGES / max(1, pages))
    found: dict[Part, dict[str, int]] = defaultdict(dict)
    for row in store.rows(counts.sample(store.tables), {"percent": percent}):
        found[row.destination, row.part][row.state] = round(row.counted * 100.0 / percent)
    return found


def _longest(*ages: float | None) -> float | None:
    return max((age for age in ages if age is not None), default=None)


def tallies(store: Store, minutes: int = MINUTES) -> dict[str, dict[str, float]]:
    """What became of messages in this minute and the last few: outcomes a minute, by destination."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in store.rows(activity.tallied(store.tables), {"minutes": minutes}):
        found[row.destination][row.outcome] = row.counted / row.minutes
    return found


def heartbeats(store: Store) -> list[Sign]:
    """The workers (kind `worker`), and what ran last: `claim`, `publish`, `beat` and `maintain`."""
    return [Sign(*row) for row in store.rows(activity.heartbeats(store.tables), {})]


def publishers(store: Store) -> int:
    """How many processes publish, or did within the last half minute."""
    return int(store.rows(slots.publishers(store.tables), {})[0][0])


def archived(store: Store, bound: int = BOUND) -> tuple[int, bool]:
    """How many messages are archived, and whether that is an estimate."""
    [row] = store.rows(counts.archived(store.tables), {"bound": bound})
    return (row.counted, False) if row.counted < bound else (max(row.counted, row.estimated or 0), True)


def blocked_keys(store: Store, size: int) -> list[Any]:
    """The keys that are held up by a dead message: see `claim_keys.blocked_keys`."""
    return list(store.rows(claim_keys.blocked_keys(store.tables), {"blocking": _blocking(store), "size": size}))


def count_blocked_keys(store: Store, size: int) -> int:
    """How many keys are, counted up to `size`."""
    counted = claim_keys.count_blocked_keys(store.tables)
    return int(store.rows(counted, {"blocking": _blocking(store), "size": size})[0][0])


def _blocking(store: Store) -> list[str]:
    configured = store.settings.destinations
    return [name for name, destination in configured.items() if destination.on_dead == "block"]
