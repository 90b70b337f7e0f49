"""What several pages show of the whole outbox: its problems, its status, and how the sends went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.exceptions import HTTPException

from outbox_tasks.operating import audit, status
from outbox_tasks.operating.courses import Course, courses, empty
from outbox_tasks.operating.problems import Problem, sends
from outbox_tasks.operating.status import Status
from outbox_tasks.web import charts
from outbox_tasks.web.visit import Visit

STATUS = "status"
"""The name of the look at the whole outbox."""

COLUMN_SECONDS, COLUMNS = 600, 36
"""Of the small charts. They show six hours."""

COURSE_SECONDS = 30.0
"""So long a look at the counts of the last hours is kept: they change slowly, and cost more than others."""

OF_WORKERS = (
    "claims_late", "no_beat", "no_claims", "no_heartbeat", "no_maintenance", "no_workers", "queue_stuck", "same_name",
    "tasks_unsupervised", "tasks_wait", "worker_lost", "wrong_worker",
)  # fmt: skip
PLACES = {"dead_letters": "/errors", "keys_blocked": "/keys", **dict.fromkeys(OF_WORKERS, "/workers")}
"""The pages where people see to a problem, by its code."""


def status_if_known(visit: Visit) -> Status:
    """The whole outbox. If the database does not answer, only its problems are known."""
    return visit.look(STATUS, lambda: status.read(visit.shared.connections))


def status_of(visit: Visit) -> Status:
    """The whole outbox. Raises `HTTPException` if the database does not answer."""
    known = status_if_known(visit)
    if visit.settings.destinations and not known.destinations:
        raise HTTPException(503, known.examination.problems[0].fact)
    return known


def small_charts(visit: Visit, names: Iterable[str]) -> Mapping[str, charts.Chart]:
    """The charts of these destinations for a table."""

    def draw() -> dict[str, charts.Chart]:
        rows = courses(visit.store, COLUMN_SECONDS, COLUMNS)
        return {name: charts.small(course) for name, course in rows.items()}

    drawn, nothing = visit.look("charts", draw, seconds=COURSE_SECONDS), charts.small(empty(COLUMN_SECONDS, COLUMNS))
    return {name: drawn.get(name, nothing) for name in names}


def course_of(visit: Visit, name: str, width: int, spans: int) -> Course:
    """How the sends to one destination went."""
    rows = visit.look(
        f"sends to {name} {width}", lambda: courses(visit.store, width, spans, name), seconds=COURSE_SECONDS
    )
    return rows.get(name) or empty(width, spans)


def under_way(acts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Acts that are under way, each with its `text` for people."""
    return [{**act, "text": audit.under_way(act)} for act in acts]


def problems_of(known: Status, name: str) -> list[Problem]:
    """The problems that a destination has, or suffers from."""
    problems = [root for root in known.examination.problems if name in (each.which for each in (root, *root.follows))]
    counts = known.destinations.get(name)
    own = None if problems or counts is None else sends.of_destination(name, counts)
    return [own] if own else problems


def place(visit: Visit, problem: Problem) -> str:
    """The page where people see to a problem."""
    is_of_messages = problem.code in ("dead_letters", "keys_blocked")
    path = PLACES.get(problem.code) or (
        f"/destinations/{problem.which}" if problem.which in status_if_known(visit).destinations else "/doctor"
    )
    return visit.url(path, destination=(problem.which or None) if is_of_messages else None)
