"""The start page: trouble first, then the destinations, then who is at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outbox_tasks.operating import health, overview
from outbox_tasks.operating.health import Problem
from outbox_tasks.operating.overview import DestinationStatus, Overview
from outbox_tasks.web.http import Response
from outbox_tasks.web.visit import Visit


@dataclass(frozen=True, slots=True)
class Seen:
    """What the start page shows, at one moment."""

    problems: Sequence[Problem]
    overview: Overview

    @property
    def destinations(self) -> list[tuple[str, DestinationStatus]]:
        """Those in trouble first."""
        return sorted(self.overview.destinations.items(), key=lambda pair: (pair[1].in_service, pair[0]))

    @property
    def dead(self) -> int:
        return sum(one.states["dead"] for one in self.overview.destinations.values())

    @property
    def dead_estimated(self) -> bool:
        return any("dead" in one.estimated for one in self.overview.destinations.values())


def start(visit: Visit) -> Response:
    """All at one glance."""
    return visit.show("start.html", seen=visit.look("start", lambda: _seen(visit)))


def _seen(visit: Visit) -> Seen:
    slow = health.slow(visit.store)
    seen = overview.read(visit.store)
    problems = [*filter(None, [slow]), *health.judge(visit.settings, seen)]
    return Seen(problems, seen)
