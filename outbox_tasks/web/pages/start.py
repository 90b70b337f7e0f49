"""The start page: problems first, then the destinations, then who is at work."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.operating import overview as counted
from outbox_tasks.operating.problems import Severity
from outbox_tasks.operating.status import feed_state
from outbox_tasks.web import overview
from outbox_tasks.web.pages.workers import in_order
from outbox_tasks.web.visit import Visit

PROBLEMS, DESTINATIONS, FEEDS, WORKERS = 20, 100, 50, 10
"""How many are shown; of the others it says how many there are."""


def start(visit: Visit) -> Response:
    """All at one glance. If the database does not answer, only the problems."""
    found = overview.glance(visit)
    problems, known = found.examination.problems, bool(found.destinations)
    wanted = (visit.ask("find") or "").casefold()
    named = [(name, one) for name, one in found.ranked if wanted in name.casefold()]
    stale_after = visit.settings.stale_after
    return visit.show(
        "start.html",
        status=200 if known or not visit.settings.destinations else 503,
        found=found,
        known=known,
        going=overview.under_way(act._asdict() for act in found.acts),
        problems=problems,
        shown=PROBLEMS,
        stale={problem.which for problem in found.examination.everything if problem.code == "stale"},
        number_wrong=sum(problem.severity is not Severity.NOTE for problem in problems),
        place=lambda problem: overview.place(visit, problem),
        destinations=named[:DESTINATIONS],
        more_destinations=len(named) - DESTINATIONS,
        cut=counted.cut(found.destinations),
        supervised=any(one.states["handed over"] or one.states["running"] for one in found.destinations.values()),
        drawn=overview.drawn(visit, (name for name, _ in named[:DESTINATIONS])) if known else {},
        hours=overview.WIDTH * overview.SPANS // 3600,
        feeds=[(each, feed_state(each.failing, each.age, stale_after)) for each in found.feeds[:FEEDS]],
        workers=in_order([*found.heartbeats.workers, *found.heartbeats.supervising]),
        shown_workers=WORKERS,
    )
