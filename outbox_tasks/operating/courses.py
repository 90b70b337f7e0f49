"""How the sends of each destination went over the last hours, for charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outbox_tasks.database.activity import FAILED, SENT
from outbox_tasks.database.connection import Database


@dataclass(frozen=True, slots=True)
class Course:
    """The sends of a destination in spans of time, the oldest first. The last span has not ended."""

    width: int
    """Seconds of a span."""
    sent: list[int]
    failed: list[int]

    @property
    def hours(self) -> float:
        """How far back it goes."""
        return len(self.sent) * self.width / 3600


def empty(width: int, spans: int) -> Course:
    """The course of a destination to which nothing was sent."""
    return Course(width, [0] * spans, [0] * spans)


def courses(database: Database, width: int, spans: int, destination: str | None = None) -> Mapping[str, Course]:
    """By name, of the destinations to which something was sent in that time, or of this one only. Counts are kept for a
    day."""
    parameters = {"width": width, "spans": spans, "destination": destination, "arrived": [*SENT], "failures": [*FAILED]}
    found: dict[str, Course] = {}
    for row in database.ask("report/course.sql", **parameters):
        course = found.setdefault(row.destination, empty(width, spans))
        course.sent[-1 - row.ago] = row.sent
        course.failed[-1 - row.ago] = row.failed
    return found
