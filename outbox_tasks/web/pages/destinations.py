"""One destination: its state, what waits for it, how its sends went, and the settings that apply to it."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.operating import limits
from outbox_tasks.operating import overview as counted
from outbox_tasks.operating.messages.filters import seconds_of
from outbox_tasks.operating.messages.find import ARCHIVED
from outbox_tasks.operating.overview import DestinationStatus
from outbox_tasks.text import shell_line
from outbox_tasks.web import overview
from outbox_tasks.web.visit import FEW_SHOWN, Visit

LAST_HOUR, LAST_DAY = (60, 60), (900, 96)
"""Seconds of a column of the large charts, and how many columns there are."""

COMMANDS = (("pause",), ("resume",), ("limit", "--rate", "20", "--for", "2h"))
"""The commands that do the same as the forms."""


def destination(visit: Visit) -> Response:
    """All about one destination, also if it is no longer configured."""
    name = visit.arguments["name"]
    status = overview.status_of(visit)
    counts = status.destinations.get(name)
    if counts is None:
        raise HTTPException(404, f"There is no destination {name!r}, and no message to one was found.")
    details = visit.look(f"destination {name}", lambda: _details(visit, name, counts))
    return visit.show(
        "destination.html",
        name=name,
        counts=counts,
        state=counts.state,
        problems=overview.problems_of(status, name),
        place=lambda problem: overview.place(visit, problem),
        commands={act: shell_line(act, *options, "--why", "…", name) for act, *options in COMMANDS},
        details=details,
        limited=any(limit.change for limit in details["limits"]),
        states=[*counted.STATES, *ARCHIVED],
        hour=overview.chart_of(visit, name, *LAST_HOUR),
        day=overview.chart_of(visit, name, *LAST_DAY),
    )


def _details(visit: Visit, name: str, counts: DestinationStatus) -> dict[str, Any]:
    """What only this page shows."""
    return {
        "sends": visit.store.ask("look/sends.sql", destination=name, most=FEW_SHOWN),
        "slots": visit.store.traffic.slots(name) if counts.configured else None,
        "limits": limits.in_force(visit.store, name) if counts.configured else [],
    }


def pause(visit: Visit) -> Response:
    """Send nothing to the destination until somebody resumes it."""
    name = _configured(visit)
    limits.pause(visit.store, name, visit.person.name, visit.why())
    return _back(visit, name)


def resume(visit: Visit) -> Response:
    """End a pause, or close the breaker."""
    name = _configured(visit)
    limits.resume(visit.store, name, visit.person.name, visit.why())
    return _back(visit, name)


def limit(visit: Visit) -> Response:
    """Limit the destination, in the place of its settings."""
    name, length = _configured(visit), visit.form_value("for")
    wanted = {setting: value for setting in limits.STEERED if (value := visit.form_value(setting)) is not None}
    limits.limit(
        visit.store, name, wanted, visit.person.name, visit.why(), None if length is None else seconds_of(length)
    )
    return _back(visit, name)


def clear_limits(visit: Visit) -> Response:
    """Let its settings count again."""
    name = _configured(visit)
    limits.clear(visit.store, name, visit.person.name, visit.why())
    return _back(visit, name)


def _configured(visit: Visit) -> str:
    name = visit.arguments["name"]
    if name not in visit.settings.destinations:
        raise HTTPException(409, f"{name!r} is not configured here, so nothing is sent to it.")
    return name


def _back(visit: Visit, name: str) -> Response:
    visit.forget(overview.STATUS, f"destination {name}")
    return visit.go(f"/destinations/{name}")
