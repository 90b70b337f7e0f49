"""Who is at work: the workers, what ran last, and the sends that run now."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

from outbox_tasks.operating.heartbeats import Heartbeat
from outbox_tasks.web import overview
from outbox_tasks.web.visit import Visit

SHOWN = 100
"""Workers, and sends, that are shown."""


def workers(visit: Visit) -> Response:
    """The workers of the relay, the application's that run supervised tasks, and what they do."""
    found = overview.look_at(visit)
    relay, supervising = in_order(found.heartbeats.workers), in_order(found.heartbeats.supervising)
    sends = visit.look("sends that run", lambda: visit.store.ask("look/sends.sql", destination=None, most=SHOWN))
    running = [(name, one) for name, one in found.destinations.items() if one.states["running"]]
    return visit.show(
        "workers.html",
        found=found,
        relay=relay[:SHOWN],
        supervising=supervising[:SHOWN],
        more=len(relay[SHOWN:]) + len(supervising[SHOWN:]),
        sends=sends,
        running=running,
    )


def in_order(found: Iterable[Heartbeat]) -> list[Heartbeat]:
    """Those in trouble first."""
    return sorted(found, key=lambda one: (one.alive, not one.shares_name, one.name))
