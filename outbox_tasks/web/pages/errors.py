"""What the dead letters died of, in groups of one error each; and the keys that are held up."""

from __future__ import annotations

from starlette.responses import Response

from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import COUNTED_AT_MOST, GROUPS_AT_MOST, Lookup
from outbox_tasks.operating.messages.keys import held_up
from outbox_tasks.web import overview
from outbox_tasks.web.visit import ROWS_SHOWN, Visit


def errors(visit: Visit) -> Response:
    """The groups, the largest first; of one destination or code, if the address names them."""
    wanted = filters.asked(visit.query)
    groups, complete = visit.look(
        f"errors {wanted.destination}", lambda: Lookup(visit.store).groups(wanted.destination)
    )
    rows = [group for group in groups if wanted.code in (None, group["last_error_code"])]
    return visit.show(
        "errors.html",
        rows=rows[:ROWS_SHOWN],
        rows_left_out=len(rows) - ROWS_SHOWN,
        wanted=wanted,
        complete=complete,
        groups_read=GROUPS_AT_MOST,
        counted=COUNTED_AT_MOST,
        acts=visit.look("acts", lambda: overview.under_way(visit.acts.going())),
    )


def keys(visit: Visit) -> Response:
    destination = visit.query_value("destination")
    # This looks at each dead message that has a key, so it is kept a little longer than other looks.
    held = visit.look(f"keys of {destination}", lambda: held_up(visit.store, ROWS_SHOWN, destination), seconds=5.0)
    return visit.show("keys.html", held=held, destination=destination)
