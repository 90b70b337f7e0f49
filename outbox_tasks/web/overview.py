"""What several pages show of the whole outbox: its problems, its status, and how the sends went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.exceptions import HTTPException

from outbox_tasks.operating import audit, status
from outbox_tasks.operating.courses import Course, courses, empty
from outbox_tasks.operating.problems import Problem, sends
from outbox_tasks.operating.status import Status
from outbox_tasks.telemetry.alerts import known
from outbox_tasks.web import charts
from outbox_tasks.web.visit import Visit

STATUS = "status"
"""The name of the look at the whole outbox."""

WIDTH, SPANS = 600, 36
"""Seconds of a column of the small charts, and how many they have: six hours."""

SELDOM = 30.0
"""Seconds for which a look at the counts of the last hours is kept."""

OPEN = 50
"""Alerts that are looked at."""

WORKERS = (
    "claims_late", "no_beat", "no_claims", "no_heartbeat", "no_maintenance", "no_workers", "queue_stuck", "same_name",
    "tasks_unsupervised", "tasks_wait", "worker_lost", "wrong_worker",
)  # fmt: skip
PLACES = {"dead_letters": "/errors", "keys_blocked": "/keys", **dict.fromkeys(WORKERS, "/workers")}
"""Where a problem is seen to, by its code."""


def glance(visit: Visit) -> Status:
    """The whole outbox. If the database does not answer, only its problems are known."""
    return visit.look(STATUS, lambda: status.read(visit.connections))


def look_at(visit: Visit) -> Status:
    """The whole outbox. Raises `HTTPException` if the database does not answer."""
    found = glance(visit)
    if visit.settings.destinations and not found.destinations:
        raise HTTPException(503, found.examination.problems[0].fact)
    return found


def drawn(visit: Visit, names: Iterable[str]) -> Mapping[str, charts.Chart]:
    """The small charts of these destinations."""

    def draw() -> dict[str, charts.Chart]:
        return {name: charts.small(course) for name, course in courses(visit.store, WIDTH, SPANS).items()}

    found, nothing = visit.look("drawn", draw, seconds=SELDOM), charts.small(empty(WIDTH, SPANS))
    return {name: found.get(name, nothing) for name in names}


def sends_to(visit: Visit, name: str, width: int, spans: int) -> Course:
    """How the sends to one destination went."""
    found = visit.look(f"sends to {name} {width}", lambda: courses(visit.store, width, spans, name), seconds=SELDOM)
    return found.get(name) or empty(width, spans)


def alerts(visit: Visit) -> list[Any]:
    """The alerts that people were sent, open ones first."""
    return visit.look("alerts", lambda: known(visit.store, OPEN), seconds=SELDOM / 3)


def under_way(acts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Acts that are under way, with what they are in words: see `acts.html`."""
    return [{**act, "told": audit.under_way(act)} for act in acts]


def of_destination(found: Status, name: str) -> list[Problem]:
    """The problems that a destination has, or suffers from."""
    problems = [root for root in found.examination.problems if name in (each.which for each in (root, *root.follows))]
    counts = found.destinations.get(name)
    own = None if problems or counts is None else sends.of_destination(name, counts)
    return [own] if own else problems


def place(visit: Visit, problem: Problem) -> str:
    """The page where one sees to a problem."""
    of_messages = problem.code in ("dead_letters", "keys_blocked")
    path = PLACES.get(problem.code) or (
        f"/destinations/{problem.which}" if problem.which in glance(visit).destinations else "/doctor"
    )
    return visit.url(path, destination=(problem.which or None) if of_messages else None)
