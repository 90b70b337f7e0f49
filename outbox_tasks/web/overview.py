"""What several pages show of the whole outbox: its status, its trouble, and how the sends went."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox_tasks.operating import status
from outbox_tasks.operating.courses import Course, courses, empty
from outbox_tasks.operating.health import Problem
from outbox_tasks.operating.overview import DestinationStatus
from outbox_tasks.operating.status import Queues, Status, dead_letters_wait, keys_held_up, why_not_in_order
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.alerts.table import AlertTable
from outbox_tasks.web import charts
from outbox_tasks.web.visit import Visit

if TYPE_CHECKING:
    from markupsafe import Markup

STATUS = "status"
"""The name of the look at the whole outbox."""

BOUND = 1_000
"""Messages of a destination and state are counted up to this. The command counts more, but not every two seconds."""

WIDTH, SPANS = 600, 36
"""Seconds of a column of the small charts, and how many they have: six hours."""

SELDOM = 30.0
"""Seconds for which a look at the counts of the last hours is kept."""

OPEN = 50
"""Alerts that are looked at."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something to see to, and the page where that is done."""

    kind: str
    """bad or warn."""
    text: str
    path: str
    query: Mapping[str, Any]


def look_at(visit: Visit) -> Status:
    """The whole outbox."""
    return visit.look(STATUS, lambda: status.read(visit.store, _queues(visit), BOUND))


def _queues(visit: Visit) -> Queues:
    """The same one as long as this process lives: it has a connection to the broker."""
    return visit.look("queues", lambda: Queues(visit.settings, visit.app), seconds=math.inf)


def drawn(visit: Visit, names: Iterable[str]) -> Mapping[str, Markup]:
    """The small charts of these destinations."""

    def draw() -> dict[str, Markup]:
        return {name: charts.small(name, course) for name, course in courses(visit.store, WIDTH, SPANS).items()}

    found = visit.look("drawn", draw, seconds=SELDOM)
    return {name: found.get(name) or charts.small(name, empty(WIDTH, SPANS)) for name in names}


def sends_to(visit: Visit, name: str, width: int, spans: int) -> Course:
    """How the sends to one destination went."""
    found = visit.look(f"sends to {name} {width}", lambda: courses(visit.store, width, spans, name), seconds=SELDOM)
    return found.get(name) or empty(width, spans)


def alerts(visit: Visit) -> list[Any]:
    """The alerts that people were sent, open ones first."""
    return visit.look("alerts", lambda: AlertTable(visit.store).known(OPEN), seconds=SELDOM / 3)


def rank(settings: Settings, one: DestinationStatus) -> tuple[int, int]:
    """A destination's place among all: the worst trouble first, then the longest backlog."""
    worries = (
        one.stale(settings) or (not one.configured and one.oldest is not None),
        one.state in ("refuses", "open", "trying"),
        bool(one.states["dead"] or one.held_up),
        one.state == "paused",
        bool(one.failed or one.breaker["failures"]),
    )
    return next((place for place, worry in enumerate(worries) if worry), len(worries)), -one.due


def worried(settings: Settings, one: DestinationStatus) -> bool:
    """Whether somebody should see to a destination; a failed send alone is no reason."""
    return worry(settings, one) is not None or one.state != "closed"


def worry(settings: Settings, one: DestinationStatus) -> tuple[str, str] | None:
    """What is wrong with a destination that is in service: how bad, and a word for it."""
    if one.stale(settings):
        return "bad", "overdue"
    return ("warn", "keys held up" if one.held_up else "has dead letters") if one.states["dead"] else None


def troubles(settings: Settings, found: Status) -> Iterator[Trouble]:
    """All that somebody should see to, in the words of the command line."""
    yield from (Trouble("bad", problem.text, *_place(problem)) for problem in found.problems)
    destinations = sorted(found.seen.destinations.items(), key=lambda pair: (*rank(settings, pair[1]), pair[0]))
    for name, one in destinations:
        why = why_not_in_order(name, one)
        if why and one.state != "closed":
            kind = "warn" if one.state == "paused" else "bad"
            yield Trouble(kind, why, f"/destinations/{name}", {})
    if dead := dead_letters_wait(found.seen.destinations):
        yield Trouble("warn", dead, "/errors", {})
    for name, one in destinations:
        if one.held_up:
            yield Trouble("warn", keys_held_up(name, one.held_up), "/keys", {"destination": name})


def _place(problem: Problem) -> tuple[str, dict[str, Any]]:
    """Where a problem can be seen to."""
    if problem.code in ("stale", "unknown"):
        return f"/destinations/{problem.about}", {}
    if problem.code == "feed":
        return "/", {}
    if problem.code in ("queue", "name", "beat", "claim", "worker"):
        return "/workers", {}
    return "/doctor", {}
