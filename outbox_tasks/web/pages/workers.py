"""Who is at work: the workers, what ran last, and the sends that run now."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

from outbox_tasks.operating.heartbeats import Heartbeat
from outbox_tasks.web import overview
from outbox_tasks.web.visit import ROWS_SHOWN, Visit


def workers(visit: Visit) -> Response:
    """The workers of the relay, the application's that run supervised tasks, and what they do."""
    status = overview.status_of(visit)
    relay, supervising = in_order(status.heartbeats.workers), in_order(status.heartbeats.supervising)
    return visit.show(
        "workers.html",
        outbox=status,
        relay=relay[:ROWS_SHOWN],
        supervising=supervising[:ROWS_SHOWN],
        workers_left_out=len(relay[ROWS_SHOWN:]) + len(supervising[ROWS_SHOWN:]),
        sends=visit.look("sends", lambda: visit.store.ask("look/sends.sql", destination=None, most=ROWS_SHOWN)),
        running=[(name, counts) for name, counts in status.destinations.items() if counts.states["running"]],
    )


def in_order(heartbeats: Iterable[Heartbeat]) -> list[Heartbeat]:
    """Workers in trouble first."""
    return sorted(heartbeats, key=lambda worker: (worker.alive, not worker.shares_name, worker.name))
