"""The start page: trouble first, then the destinations, then who is at work."""

from __future__ import annotations

from outbox_tasks.operating import overview as counted
from outbox_tasks.web import overview
from outbox_tasks.web.http import Response
from outbox_tasks.web.pages.workers import in_order
from outbox_tasks.web.visit import Visit

TROUBLES, DESTINATIONS, FEEDS, WORKERS = 20, 100, 50, 10
"""How many are shown; of the others it says how many there are."""


def start(visit: Visit) -> Response:
    """All at one glance."""
    found = overview.look_at(visit)
    wanted = (visit.ask("find") or "").casefold()
    everything = found.seen.destinations
    ranked = sorted(everything.items(), key=lambda pair: (*overview.rank(visit.settings, pair[1]), pair[0]))
    named = [(name, one) for name, one in ranked if wanted in name.casefold()]
    troubles = list(overview.troubles(visit.settings, found))
    beats = found.seen.heartbeats
    workers = in_order([*beats.workers, *beats.supervising])
    return visit.show(
        "start.html",
        found=found,
        troubles=troubles[:TROUBLES],
        more_troubles=len(troubles) - TROUBLES,
        in_trouble=[name for name, one in ranked if overview.worried(visit.settings, one)],
        worry=lambda one: overview.worry(visit.settings, one),
        destinations=named[:DESTINATIONS],
        number=len(everything),
        more_destinations=len(named) - DESTINATIONS,
        cut=counted.cut(everything),
        supervised=any(one.states["handed over"] or one.states["running"] for one in everything.values()),
        drawn=overview.drawn(visit, (name for name, _ in named[:DESTINATIONS])),
        hours=overview.WIDTH * overview.SPANS // 3600,
        feeds=found.seen.feeds[:FEEDS],
        more_feeds=len(found.seen.feeds) - FEEDS,
        workers=workers[:WORKERS],
        all_workers=len(workers),
        open_alerts=sum(row.over_at is None for row in overview.alerts(visit)),
    )
