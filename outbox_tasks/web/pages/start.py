"""The start page: problems first, then the destinations, then who is at work."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.operating import overview as counted
from outbox_tasks.web import overview
from outbox_tasks.web.pages.workers import in_order
from outbox_tasks.web.visit import Visit

PROBLEMS, DESTINATIONS, FEEDS, WORKERS = 20, 100, 50, 10
"""How many are shown; of the others it says how many there are."""


def start(visit: Visit) -> Response:
    """All at one glance."""
    found = overview.look_at(visit)
    wanted = (visit.ask("find") or "").casefold()
    everything = found.destinations
    named = [(name, one) for name, one in found.ranked if wanted in name.casefold()]
    problems = found.examination.problems
    beats = found.heartbeats
    workers = in_order([*beats.workers, *beats.supervising])
    return visit.show(
        "start.html",
        found=found,
        problems=problems[:PROBLEMS],
        more_problems=len(problems) - PROBLEMS,
        in_trouble=overview.in_trouble(found),
        place=lambda problem: overview.place(problem, found),
        destinations=named[:DESTINATIONS],
        number=len(everything),
        more_destinations=len(named) - DESTINATIONS,
        cut=counted.cut(everything),
        supervised=any(one.states["handed over"] or one.states["running"] for one in everything.values()),
        drawn=overview.drawn(visit, (name for name, _ in named[:DESTINATIONS])),
        hours=overview.WIDTH * overview.SPANS // 3600,
        feeds=found.feeds[:FEEDS],
        more_feeds=len(found.feeds) - FEEDS,
        workers=workers[:WORKERS],
        all_workers=len(workers),
        open_alerts=sum(row.over_at is None for row in overview.alerts(visit)) if everything else 0,
    )
