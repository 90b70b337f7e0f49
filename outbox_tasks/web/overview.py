"""What several pages show of the whole outbox: its problems, its status, and how the sends went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from starlette.exceptions import HTTPException

from outbox_tasks.operating import audit, status
from outbox_tasks.operating.overview import Course, courses
from outbox_tasks.operating.problems import Problem, sends
from outbox_tasks.operating.status import Status
from outbox_tasks.web.visit import Visit

STATUS = "status"
"""The name of the look at the whole outbox."""

COLUMN_SECONDS, COLUMNS, HOURS = 600, 36, 6
"""Of the small charts."""

COURSE_SECONDS = 30.0
"""So long a look at the counts of the last hours is kept: they change slowly, and cost more than others."""

LISTS = {"dead_letters": "/errors", "keys_blocked": "/keys"}
"""The pages where people see to a problem of messages, by its code."""


def status_if_known(visit: Visit) -> Status:
    """The whole outbox. If the database does not answer, only its problems are known."""
    return visit.look(STATUS, lambda: status.read(visit.shared.connections))


def status_of(visit: Visit) -> Status:
    """The whole outbox. Raises `HTTPException` if the database does not answer."""
    known = status_if_known(visit)
    if visit.settings.destinations and not known.destinations:
        raise HTTPException(503, known.examination.problems[0].fact)
    return known


@dataclass(frozen=True)
class Chart:
    """A course, to be drawn: so wide for each span of time, and so high for the highest column. What failed is on top
    of what was sent. `kit.html` draws it as SVG without styles: the page allows none in elements."""

    course: Course
    hours: int
    step: int = 8
    height: int = 160

    @property
    def highest(self) -> int:
        """How many sends the highest column stands for."""
        return max(map(sum, zip(self.course.sent, self.course.failed, strict=True)), default=0)

    @cached_property
    def columns(self) -> dict[str, str]:
        """The paths of the columns, by class. Each count above zero is high enough to be seen."""
        paths, highest = {"sent": "", "failed": ""}, self.highest
        for place, counts in enumerate(zip(self.course.sent, self.course.failed, strict=True)):
            sent, failed = (max(2, round(count * self.height / highest)) if count else 0 for count in counts)
            for kind, high, below in (("sent", sent, 0), ("failed", failed, sent)):
                if high:
                    paths[kind] += f"M{place * self.step} {self.height - below}v-{high}h{self.step - 1}v{high}z"
        return paths


def small_charts(visit: Visit, names: Iterable[str]) -> Mapping[str, Chart]:
    """The charts of these destinations for a table."""
    rows = visit.look("charts", lambda: courses(visit.store, COLUMN_SECONDS, COLUMNS), seconds=COURSE_SECONDS)
    nothing = Course([0] * COLUMNS, [0] * COLUMNS)
    return {name: Chart(rows.get(name, nothing), HOURS, 4, 32) for name in names}


def chart_of(visit: Visit, name: str, width: int, spans: int) -> Chart:
    """The chart of one destination. `width`: seconds of a column."""
    read = partial(courses, visit.store, width, spans, name)
    rows = visit.look(f"sends to {name} {width}", read, seconds=COURSE_SECONDS)
    return Chart(rows.get(name) or Course([0] * spans, [0] * spans), width * spans // 3600)


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
    if problem.code in LISTS:
        return visit.url(LISTS[problem.code], destination=problem.which or None)
    is_destination = problem.which in status_if_known(visit).destinations
    return visit.url(f"/destinations/{problem.which}" if is_destination else "/doctor")
