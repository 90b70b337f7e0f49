"""The state of an outbox: its destinations, its workers, and when claim, beat and maintenance ran last.

It is read from the database alone, in a few round trips. Their cost does not grow with the tables.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outbox_tasks.database import activity
from outbox_tasks.database.connection import Database
from outbox_tasks.relay.store import Store
from outbox_tasks.text import one_line

BOUND = 1_000
"""Messages of a destination and state are counted up to this, and estimated beyond it."""

COUNTED_OF_ALL, COUNTED_OF_EACH = 10_000, 10
"""With many destinations fewer of each are counted: about so many in all, but so many of each at least."""

PAGES = 300
"""Pages of the table that are read for an estimate."""

COUNTED = 10_000
"""Messages that wait for a key, and keys, are counted up to here."""

KEYS = 1_000
"""Keys of a destination whose heads are looked at for the oldest."""

MOST_UNKNOWN = 100
"""Destinations that are looked at though they are not configured: a writer can name any number."""

REFUSALS = 5
"""Sends that a destination has refused since one arrived, from which on it counts as refusing everything."""

REFUSED_SECONDS = 3600.0
"""Seconds after the last refusal, after which nobody knows whether the destination still refuses."""

FAILING_SENDS, FAILING_SHARE = 5, 0.2
"""Failed sends of the last minute, and their share of all, from which on a destination counts as failing."""

RECOVERED_SECONDS = 15.0
"""Seconds without a failed send after which a destination has recovered, if sends arrive."""

STATES = ("pending", "leased", "handed over", "running", "retrying", "scheduled", "dead")
"""The states of the view outbox_all that are not of the archive."""

Part = tuple[str, str]
"""A destination, and where its messages are: see look/counts.sql."""

DUE_AGAIN = {"ready", "leased", "run"}
"""Places where what has failed is due again."""


UNANSWERED = ("connection", "timeout")
"""Codes of errors whose text is that of a client on this host."""


@dataclass(slots=True)
class DestinationStatus:
    """How many messages of a destination are in each state, and how its sends go."""

    configured: bool = True
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    estimated: set[str] = field(default_factory=set)
    """The states whose messages were not all counted."""
    due: int = 0
    """How many could be claimed now, but for their order; estimated if `pending` is."""
    oldest: float | None = None
    """For how many seconds the oldest due message has been due. Of messages with a key, only the heads of the first
    `KEYS` keys are looked at."""
    held_up: int = 0
    """How many keys a dead message holds up."""
    drains: int = 0
    """How many drains are at work for it."""
    dead_for: float | None = None
    """For how many seconds the first of its dead letters has been dead."""
    waited: float | None = None
    """For how many seconds the oldest waiting message could have been sent, also if it is not due now."""
    codes: dict[str, dict[str, int]] = field(default_factory=lambda: {"dead": {}, "retrying": {}})
    """By state, the errors: how many of the counted messages have it."""
    put_off: float | None = None
    """Seconds until the first of the messages that wait for another try is due."""
    sent: float = 0.0
    """Messages that arrived in the last minute."""
    failed: float = 0.0
    """Sends that failed in the last minute."""
    refused: int = 0
    """How many sends it has refused since one arrived."""
    arrived_ago: float | None = None
    """Seconds since the last send that arrived."""
    failed_ago: float | None = None
    """Seconds since the last send that failed."""
    breaker: dict[str, Any] = field(default_factory=lambda: {"state": "closed", "failures": 0})
    """Its row of traffic/states.sql, if it is paused or has failed."""

    @property
    def in_service(self) -> bool:
        """Whether messages are sent to it: nobody has paused it, and its breaker is closed."""
        return bool(self.breaker["state"] == "closed")

    @property
    def state(self) -> str:
        """`unknown`: it is not configured here; `refuses`: it answers, but nothing gets through; `failing`: many of its
        sends fail; or the breaker's."""
        if not self.configured:
            return "unknown"
        if self.in_service and (self.refuses or self.fails):
            return "refuses" if self.refuses else "failing"
        return str(self.breaker["state"])

    @property
    def refuses(self) -> bool:
        """Whether it answers, and takes nothing. Where nothing waits and nothing is dead, somebody has seen to it."""
        lately = self.failed_ago is not None and self.failed_ago < REFUSED_SECONDS
        return lately and self.refused >= REFUSALS and bool(self.waiting or self.states["dead"])

    @property
    def share_failed(self) -> float:
        """The share of the last minute's sends that failed."""
        return self.failed / (self.sent + self.failed) if self.failed else 0.0

    @property
    def fails(self) -> bool:
        """Whether many of its sends fail. It has recovered when sends arrive, and no send has failed for so long that
        one should have, at the rate of the last minute."""
        if self.failed < FAILING_SENDS or self.share_failed < FAILING_SHARE:
            return False
        gap = min(RECOVERED_SECONDS, 3 * 60 / self.failed)
        return self.arrived_ago is None or self.failed_ago is None or self.failed_ago <= max(gap, self.arrived_ago)

    @property
    def waits_for(self) -> float | None:
        """Seconds until the next try, if nothing is tried before and nothing has arrived since the last failure."""
        arrives = self.arrived_ago is not None and (self.failed_ago is None or self.arrived_ago < self.failed_ago)
        return None if arrives else self.put_off

    @property
    def empty_in(self) -> float | None:
        """Seconds until all that waits is sent, at the rate of the last minute; None: nothing is sent."""
        return self.waiting / self.sent * 60 if self.sent else None

    @property
    def waiting(self) -> int:
        """How many messages wait to be sent, also those that wait for another try."""
        return self.states["pending"] + self.states["retrying"]


Destinations = Mapping[str, DestinationStatus]


def destinations(
    database: Database, bound: int = BOUND, *, estimate: bool = True, only: str | None = None
) -> dict[str, DestinationStatus]:
    """By name: the destinations that are configured, and up to `MOST_UNKNOWN` others that have messages, are paused or
    out of reach. `only`: this one alone."""
    configured = database.settings.destinations
    breakers = {row.name: row._asdict() for row in database.ask("traffic/states.sql")}
    if only is None:
        present = {row.destination for row in database.ask("look/present.sql", known=[*configured], most=MOST_UNKNOWN)}
        names = sorted({*configured, *sorted({*breakers, *present} - configured.keys())[:MOST_UNKNOWN]})
    else:
        names = [only]
    found = {name: DestinationStatus(name in configured) for name in names}
    for name in found.keys() & breakers.keys():
        found[name].breaker = breakers[name]
    bound = min(bound, max(COUNTED_OF_EACH, COUNTED_OF_ALL // max(1, len(names))))
    parts: dict[Part, list[Any]] = defaultdict(list)
    for row in database.ask("look/counts.sql", destinations=names, most=bound):
        parts[row.destination, row.place].append(row)
    full = {part for part, rows in parts.items() if rows[0].full}
    sampled, all_read = _sampled(database) if full and estimate else ({}, False)
    for part, rows in parts.items():
        _add(found[part[0]], part[1], rows, sampled.get(part, {}) if part in full else None, exact=all_read)
    for row in database.ask("look/heads.sql", blocking=_blocking(database, names), most=min(bound, KEYS)):
        one = found[row.destination]
        one.held_up = row.held_up
        one.oldest = _longest(one.oldest, row.oldest)
    for row in database.ask("look/drains.sql"):
        if row.destination in found:
            found[row.destination].drains = row.count
    _add_sends(database, found)
    return found


def cut(found: Destinations) -> bool:
    """Whether there may be more destinations that are not configured."""
    return sum(not one.configured for one in found.values()) >= MOST_UNKNOWN


def _add_sends(database: Database, statuses: Mapping[str, DestinationStatus]) -> None:
    """Add how the sends went lately."""
    for row in database.ask("report/lately.sql", arrived=[*activity.SENT], failures=[*activity.FAILED]):
        if (status := statuses.get(row.destination)) is not None:
            status.sent, status.failed, status.refused = row.sent, row.failed, row.refused
            status.arrived_ago, status.failed_ago = row.arrived_ago, row.failed_ago


def _add(
    one: DestinationStatus, place: str, rows: Iterable[Any], estimates: Mapping[str, int] | None, *, exact: bool
) -> None:
    """Add the counts of a place. `estimates`: of one that goes beyond the bound; they may be exact."""
    states: Counter[str] = Counter()
    for row in rows:
        states[row.state] += row.counted
        one.oldest = _longest(one.oldest, row.oldest)
        one.waited = _longest(one.waited, row.waited)
        if row.code is not None and row.state in one.codes:
            codes = one.codes[row.state]
            codes[row.code] = codes.get(row.code, 0) + row.counted
        one.dead_for = _longest(one.dead_for, row.dead_for)
        if row.state == "retrying" and row.next is not None:
            one.put_off = row.next if one.put_off is None else min(one.put_off, row.next)
    if estimates is not None:
        states |= Counter(estimates)  # the larger of both: no estimate is below what was counted
        one.estimated |= set() if exact else states.keys()
    one.due += states["pending"] + (states["retrying"] if place in DUE_AGAIN else 0)
    for state, count in states.items():
        one.states[state] += count


def _sampled(database: Database) -> tuple[dict[Part, dict[str, int]], bool]:
    """About how many messages are in each place and state; and whether these are all, since the tables are small."""
    pages = database.ask("look/pages.sql")[0].pages
    percent = min(100.0, 100.0 * PAGES / max(1, pages))
    found: dict[Part, dict[str, int]] = defaultdict(dict)
    for row in database.ask("look/sample.sql", percent=percent):
        found[row.destination, row.place][row.state] = round(row.counted * 100.0 / percent)
    return found, percent == 100.0


def _longest(*ages: float | None) -> float | None:
    """In seconds, at most some centuries: anybody can write an infinite time."""
    return max((min(age, 1e10) for age in ages if age is not None), default=None)


def archived(store: Store, bound: int = BOUND) -> tuple[int, bool]:
    """How many messages are in the archive, and whether that is an estimate."""
    [row] = store.ask("look/archived.sql", most=bound)
    return (max(row.counted, row.estimated), True) if row.full else (row.counted, False)


def _blocking(database: Database, names: Iterable[str]) -> str:
    """Of which destinations a dead message holds up its key."""
    return json.dumps([{"destination": name, "blocks": database.settings.dead_blocks(name)} for name in names])


def error_of_circuit(code: str | None, text: str | None) -> str:
    """Why a circuit is open: the code of the error, and its text if nothing answered. An answer may quote the message,
    and people who may not read messages, logs and webhooks get this."""
    return one_line(f"{code}: {text}" if code in UNANSWERED else str(code))
