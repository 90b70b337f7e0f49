"""The keys that a dead message holds up."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.operating import overview
from outbox_tasks.operating.messages.waits import of_destinations
from outbox_tasks.operating.overview import COUNTED
from outbox_tasks.web.visit import Visit

SHOWN, KEPT = 100, 5.0
"""Keys that are shown, and seconds for which a look at them is kept: it looks at each dead message that has a key."""


def keys(visit: Visit) -> Response:
    """The keys that are held up, of one destination or of all, the longest first."""
    destination = visit.ask("destination")
    found, count = visit.look(f"keys of {destination}", lambda: _read(visit, destination), seconds=KEPT)
    shut = [str(wait) for name, wait in sorted(of_destinations(visit.store).items()) if destination in (None, name)]
    return visit.show("keys.html", found=found, count=count, counted=COUNTED, destination=destination, shut=shut)


def _read(visit: Visit, destination: str | None) -> tuple[list[object], int]:
    found = overview.blocked_keys(visit.store, SHOWN, destination)
    more = len(found) == SHOWN
    return found, overview.count_blocked_keys(visit.store, COUNTED, destination) if more else len(found)
