"""What the dead letters died of: by destination and code, and in groups of one error each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from outbox_tasks.operating.messages import filters
from outbox_tasks.operating.messages.find import COUNTED_AT_MOST, GROUPS_AT_MOST, Lookup
from outbox_tasks.web import overview
from outbox_tasks.web.visit import ROWS_SHOWN, Visit


def errors(visit: Visit) -> Response:
    """What the dead letters died of, by destination and code. With a destination and a code: the groups inside."""
    wanted = filters.asked(visit.query)
    groups, complete = visit.look(
        f"errors {wanted.destination}", lambda: Lookup(visit.store).groups(wanted.destination)
    )
    rows: list[Any] = [group for group in groups if wanted.code in (None, group["last_error_code"])]
    inside = wanted.destination is not None and wanted.code is not None
    if not inside:
        rows = _by_code(rows)
    return visit.show(
        "errors.html",
        rows=rows[:ROWS_SHOWN],
        rows_left_out=len(rows) - ROWS_SHOWN,
        inside=inside,
        wanted=wanted,
        complete=complete,
        groups_read=GROUPS_AT_MOST,
        counted=COUNTED_AT_MOST,
        event_types_shown=3,
        acts=visit.look("acts", lambda: overview.under_way(visit.acts.going())),
    )


def _by_code(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups by destination and code, the most dead letters first. An error may have a text for each customer, and
    so many groups."""
    sets: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for group in groups:
        sets.setdefault((group["destination"], group["last_error_code"]), []).append(group)
    rows = [
        {
            "destination": destination,
            "last_error_code": code,
            "groups": inside,
            "count": sum(group["count"] for group in inside),
            "uncounted": any(group["count"] >= COUNTED_AT_MOST for group in inside),
            "first_at": min(group["first_at"] for group in inside),
            "dead_at": max(group["dead_at"] for group in inside),
            "event_types": list(dict.fromkeys(group["event_type"] for group in inside)),
        }
        for (destination, code), inside in sets.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])
