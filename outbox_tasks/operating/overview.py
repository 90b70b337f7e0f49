"""The state of an outbox's destinations and feeds: how many messages are in each state, and how the sends go.

It is read from the database alone, in a few round trips. Their cost does not grow with the tables.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outbox_tasks.database import activity
from outbox_tasks.database.connection import Database
from outbox_tasks.relay.store import Store
from outbox_tasks.text import one_line, span

COUNTED_EXACTLY = 1_000
"""Messages of a destination and state are counted up to this, and estimated beyond it."""

COUNTED_AT_MOST = 10_000
"""Messages that wait for a key, and keys, are counted up to here."""

PAGES_SAMPLED = 300
"""Pages of the tables that are read for an estimate."""

UNKNOWN_SHOWN_AT_MOST = 100
"""Destinations that are looked at though they are not configured: a writer can name any number."""

STATES = ("pending", "leased", "handed over", "running", "retrying", "scheduled", "dead")
"""The states of the view outbox_all that are not of the archive."""

Part = tuple[str, str]
"""A destination, and where its messages are: see look/counts.sql."""


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
    keys are looked at."""
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
        """Whether it answers, and takes nothing: it has refused five sends since one arrived, the last one within an
        hour. Where nothing waits and nothing is dead, somebody has seen to it."""
        lately = self.failed_ago is not None and self.failed_ago < 3600
        return lately and self.refused >= 5 and bool(self.waiting or self.states["dead"])

    @property
    def share_failed(self) -> float:
        return self.failed / (self.sent + self.failed) if self.failed else 0.0

    @property
    def fails(self) -> bool:
        """Whether many of its sends fail: five in the last minute, and a fifth of all. It has recovered when sends
        arrive, and none has failed for longer than, at the rate of the last minute, three failures would take."""
        if self.failed < 5 or self.share_failed < 0.2:
            return False
        gap = min(15.0, 3 * 60 / self.failed)
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
    database: Database, bound: int = COUNTED_EXACTLY, *, estimate: bool = True
) -> dict[str, DestinationStatus]:
    """By name: the destinations that are configured, and up to `UNKNOWN_SHOWN_AT_MOST` others that have messages, are
    paused or out of reach. `bound`: messages of a state are counted up to this; with many destinations, up to fewer:
    about 10,000 in all, but 10 of each at least."""
    configured = database.settings.destinations
    breakers = {row.name: row._asdict() for row in database.ask("traffic/states.sql")}
    present = database.ask("look/present.sql", known=[*configured], most=UNKNOWN_SHOWN_AT_MOST)
    unknown = sorted({*breakers, *(row.destination for row in present)} - configured.keys())
    names = sorted({*configured, *unknown[:UNKNOWN_SHOWN_AT_MOST]})
    statuses = {name: DestinationStatus(name in configured) for name in names}
    for name in statuses.keys() & breakers.keys():
        statuses[name].breaker = breakers[name]
    bound = min(bound, max(10, 10_000 // max(1, len(names))))
    parts: dict[Part, list[Any]] = defaultdict(list)
    for row in database.ask("look/counts.sql", destinations=names, most=bound):
        parts[row.destination, row.place].append(row)
    full = {part for part, rows in parts.items() if rows[0].full}
    estimates = _estimated(database) if full and estimate else {}
    for part, rows in parts.items():
        _add(statuses[part[0]], part[1], rows, estimates.get(part, {}) if part in full else None)
    for row in database.ask("look/heads.sql", blocking=blocking(database, names), most=bound):
        status = statuses[row.destination]
        status.held_up, status.oldest = row.held_up, _longest(status.oldest, row.oldest)
    for row in database.ask("look/drains.sql"):
        if row.destination in statuses:
            statuses[row.destination].drains = row.count
    for row in database.ask("report/lately.sql", arrived=[*activity.SENT], failures=[*activity.FAILED]):
        if row.destination in statuses:
            status = statuses[row.destination]
            status.sent, status.failed, status.refused = row.sent, row.failed, row.refused
            status.arrived_ago, status.failed_ago = row.arrived_ago, row.failed_ago
    return statuses


def cut(statuses: Destinations) -> bool:
    """Whether there may be more destinations that are not configured."""
    return sum(not status.configured for status in statuses.values()) >= UNKNOWN_SHOWN_AT_MOST


def _add(status: DestinationStatus, place: str, rows: Iterable[Any], estimates: Mapping[str, int] | None) -> None:
    """Add the counts of a place. `estimates`: of a place where not all were counted."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.state] += row.counted
        status.oldest = _longest(status.oldest, row.oldest)
        status.waited = _longest(status.waited, row.waited)
        status.dead_for = _longest(status.dead_for, row.dead_for)
        if row.code is not None and row.state in status.codes:
            codes = status.codes[row.state]
            codes[row.code] = codes.get(row.code, 0) + row.counted
        if row.state == "retrying" and row.next is not None:
            status.put_off = row.next if status.put_off is None else min(status.put_off, row.next)
    if estimates is not None:
        counts |= Counter(estimates)  # the larger of both: no estimate is below what was counted
        status.estimated |= counts.keys()
    # What has failed is due again where it is in these places; in others it waits for its time, or is in a key's order.
    status.due += counts["pending"] + (counts["retrying"] if place in ("ready", "leased", "run") else 0)
    for state, count in counts.items():
        status.states[state] += count


def _estimated(database: Database) -> dict[Part, dict[str, int]]:
    """About how many messages are in each place and state."""
    pages = database.ask("look/pages.sql")[0].pages
    percent = min(100.0, 100.0 * PAGES_SAMPLED / max(1, pages))
    estimates: dict[Part, dict[str, int]] = defaultdict(dict)
    for row in database.ask("look/sample.sql", percent=percent):
        estimates[row.destination, row.place][row.state] = round(row.counted * 100.0 / percent)
    return estimates


def _longest(*ages: float | None) -> float | None:
    """In seconds, at most some centuries: anybody can write an infinite time."""
    return max((min(age, 1e10) for age in ages if age is not None), default=None)


class Course(NamedTuple):
    """The sends to a destination in spans of time, the oldest first. The last span has not ended."""

    sent: list[int]
    failed: list[int]


def courses(database: Database, width: int, spans: int, destination: str | None = None) -> Mapping[str, Course]:
    """By name, of the destinations to which something was sent in that time, or of this one only. `width`: seconds of a
    span. Counts are kept for a day."""
    outcomes = {"arrived": [*activity.SENT], "failures": [*activity.FAILED]}
    found: dict[str, Course] = {}
    for row in database.ask("report/course.sql", width=width, spans=spans, destination=destination, **outcomes):
        course = found.setdefault(row.destination, Course([0] * spans, [0] * spans))
        course.sent[-1 - row.ago] = row.sent
        course.failed[-1 - row.ago] = row.failed
    return found


def archived(store: Store, bound: int = COUNTED_EXACTLY) -> tuple[int, bool]:
    """How many messages are in the archive, and whether that is an estimate."""
    [row] = store.ask("look/archived.sql", most=bound)
    return (max(row.counted, row.estimated), True) if row.full else (row.counted, False)


def blocking(database: Database, names: Iterable[str]) -> str:
    """Of which destinations a dead message holds up its key, as the verbs in sql/look take it."""
    return json.dumps([{"destination": name, "blocks": database.settings.dead_blocks(name)} for name in names])


def error_of_circuit(code: str | None, text: str | None) -> str:
    """Why a circuit is open: the code of the error, and its text if it is that of a client on this host. Otherwise the
    destination has answered, and an answer may quote the message; this is also shown to people who may not read
    messages, in logs and at webhooks."""
    return one_line(f"{code}: {text}" if code in ("connection", "timeout") else str(code))


class FeedState(NamedTuple):
    """What people see of a feed. Ages are in seconds."""

    name: str
    holder: str | None
    copied: int
    """Rows, in all."""
    waiting: int
    """Rows at the source, as of the last run; counted to 10,000."""
    age: float
    """Of the oldest of them."""
    failures: int
    """Runs in a row that failed."""
    error: str | None
    looked: float | None
    """Since it was last read."""
    not_before: float | None
    """Until the next run may begin: its source fails, or its rate allows no more."""
    failing: float | None
    """Since it began to fail."""

    def state(self, stale_after: float) -> str:
        """How it is, in words."""
        if self.failing is not None:
            return f"fails for {span(self.failing)}"
        return "overdue" if self.age > stale_after else "in service"
