"""One destination: its state, what waits for it, how its sends went, and the settings that apply to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.operating import limits, pauses
from outbox_tasks.operating import overview as counted
from outbox_tasks.operating.limits import InForce
from outbox_tasks.operating.messages.filters import seconds_of
from outbox_tasks.operating.messages.find import ARCHIVED, DEAD, Filter
from outbox_tasks.operating.messages.keys import held_up
from outbox_tasks.operating.messages.paging import read_page
from outbox_tasks.operating.overview import DestinationStatus
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import HIDDEN, Destination
from outbox_tasks.text import redacted, shell_line
from outbox_tasks.web import charts, overview
from outbox_tasks.web.visit import Visit

WIDTH, SPANS = 900, 96
"""Seconds of a column of the large chart, and how many it has: the day for which counts are kept."""

MINUTE, MINUTES = 60, 60
"""The same of the chart of the last hour."""

SENDS, LATEST = 20, 5
"""Sends that run now, and dead letters and keys, of which the page shows some."""

INHERITED = ("send_timeout",)
"""Settings of a destination that are the general ones if it has none of its own; `singles` is one, too."""

COMMANDS = (("pause",), ("resume",), ("limit", "--rate", "20", "--for", "2h"))
"""The commands that do the same as the forms."""

GENERAL = ("backoff_base", "backoff_cap", "breaker_failures", "breaker_pause", "stale_after")
"""Settings that are the same for all destinations."""


def destination(visit: Visit) -> Response:
    """All about one destination, also if it is no longer configured."""
    name = visit.arguments["name"]
    found = overview.look_at(visit)
    one = found.destinations.get(name)
    if one is None and counted.cut(found.destinations):
        alone = visit.look(f"destination {name} alone", lambda: counted.destinations(visit.store, only=name)[name])
        one = alone if any(alone.states.values()) else None
    if one is None:
        raise HTTPException(404, f"There is no destination {name!r}, and no message to one.")
    course, now = (overview.sends_to(visit, name, *spans) for spans in ((WIDTH, SPANS), (MINUTE, MINUTES)))
    state = one.state
    dashes = ("--",) if name.startswith("-") else ()  # or the name would be read as an option
    return visit.show(
        "destination.html",
        name=name,
        one=one,
        state=state,
        problems=overview.of_destination(found, name),
        place=lambda problem: overview.place(visit, problem),
        commands={act: shell_line(act, *options, "--why", "…", *dashes, name) for act, *options in COMMANDS},
        details=(details := visit.look(f"destination {name}", lambda: _details(visit, name, one))),
        limited=any(each.change for each in details["limits"]),
        states=[*counted.STATES, *ARCHIVED],
        now=charts.Chart(now),
        day=charts.Chart(course),
        hours=charts.by_hour(course),
        applied=list(applied(visit.settings, name, details["limits"])) if one.configured else [],
        routes=[pattern for pattern, route in visit.settings.routes.items() if name in route.to],
    )


def _details(visit: Visit, name: str, one: DestinationStatus) -> dict[str, Any]:
    """What only this page shows."""
    sends = visit.store.ask("look/sends.sql", destination=name, most=SENDS)
    wanted = Filter(states=(DEAD,), destination=name)
    dead = read_page(visit.store, wanted, LATEST).messages if one.states[DEAD] else []
    keys = held_up(visit.store, LATEST, name).keys if one.held_up else []
    most = visit.store.traffic.slots(name) if one.configured else None
    found = limits.in_force(visit.store, name) if one.configured else []
    return {"sends": sends, "most": most, "dead": dead, "keys": keys, "limits": found}


def pause(visit: Visit) -> Response:
    """Send nothing to the destination until somebody resumes it."""
    name = _configured(visit)
    pauses.pause(visit.store, name, visit.person.name, visit.why())
    return _back(visit, name)


def resume(visit: Visit) -> Response:
    """End a pause, or close the breaker."""
    name = _configured(visit)
    pauses.resume(visit.store, name, visit.person.name, visit.why())
    return _back(visit, name)


def limit(visit: Visit) -> Response:
    """Limit the destination, in the place of its settings."""
    name, ends = _configured(visit), visit.said("for")
    wanted = {setting: value for setting in limits.STEERED if (value := visit.said(setting)) is not None}
    seconds = seconds_of(ends) if ends else None
    limits.limit(visit.store, name, wanted, visit.person.name, visit.why(), seconds)
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
    visit.looks.forget(overview.STATUS)
    visit.looks.forget(f"destination {name}")
    return visit.go(f"/destinations/{name}")


def applied(settings: Settings, name: str, counts: list[InForce]) -> Iterator[tuple[str, str, str]]:
    """The settings that apply to a destination, without secrets: name, value and whence. `counts`: its limits."""
    own = settings.destinations[name]
    yield from ((each.setting, each.shown, each.whence) for each in counts)
    for field in (field for field in Destination.model_fields if field not in ("name", *limits.STEERED)):
        value = getattr(own, field)
        if value is None and field in INHERITED:
            yield field, _plain(getattr(settings, field)), "the general setting"
        else:
            yield field, _shown(own, field), "its own setting" if field in own.model_fields_set else "the default"
    for field in GENERAL:
        yield field, _plain(getattr(settings, field)), "the general setting"


def _shown(own: Destination, field: str) -> str:
    """A value without secrets."""
    value = getattr(own, field)
    if field in ("url", "claim_check"):
        return redacted(value) if value else "none"
    if field == "transport_options":
        return ", ".join(f"{name} = {HIDDEN}" for name in value) or "none"
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
