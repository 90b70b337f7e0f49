"""The keys that are held up."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.operating.messages.keys import held_up
from outbox_tasks.web.visit import ROWS_SHOWN, Visit


def keys(visit: Visit) -> Response:
    """The keys that are held up, of one destination or of all."""
    destination = visit.query_value("destination")
    # This looks at each dead message that has a key, so it is kept a little longer than other looks.
    held = visit.look(f"keys of {destination}", lambda: held_up(visit.store, ROWS_SHOWN, destination), seconds=5.0)
    return visit.show("keys.html", held=held, destination=destination)
