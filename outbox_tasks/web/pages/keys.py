"""The keys that are held up."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.operating.messages.keys import held_up
from outbox_tasks.web.visit import Visit

SHOWN, KEPT = 100, 5.0
"""Keys that are shown, and seconds for which a look at them is kept: it looks at each dead message that has a key."""


def keys(visit: Visit) -> Response:
    """The keys that are held up, of one destination or of all."""
    destination = visit.ask("destination")
    held = visit.look(f"keys of {destination}", lambda: held_up(visit.store, SHOWN, destination), seconds=KEPT)
    return visit.show("keys.html", held=held, destination=destination)
