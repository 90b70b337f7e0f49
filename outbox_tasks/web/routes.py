"""Which function answers which address, one line a page. The first pattern that fits counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from outbox_tasks.web.access import Role
from outbox_tasks.web.pages import act, destinations, errors, message, messages, start
from outbox_tasks.web.visit import Visit


@dataclass(frozen=True)
class Route:
    """A page. With a `title`, it is in the navigation."""

    method: str
    pattern: str
    """A path as Starlette has it. What stands in braces becomes one of the visit's `arguments`."""
    role: Role
    page: Callable[[Visit], Response]
    title: str = ""
    without_tables: bool = False
    """Whether it can be shown while the tables are missing, or are those of another release."""


LOOK, PAYLOAD, ACT = Role.LOOK, Role.PAYLOAD, Role.ACT

ROUTES = [
    Route("GET", "/", LOOK, start.start, "Start", without_tables=True),
    Route("GET", "/destinations/{name:path}", LOOK, destinations.destination),
    Route("POST", "/destinations/{name:path}/pause", ACT, destinations.pause),
    Route("POST", "/destinations/{name:path}/resume", ACT, destinations.resume),
    Route("POST", "/destinations/{name:path}/limit", ACT, destinations.limit),
    Route("POST", "/destinations/{name:path}/clear-limits", ACT, destinations.clear_limits),
    Route("GET", "/errors", LOOK, errors.errors, "Errors"),
    Route("GET", "/acts/new", ACT, act.new),
    Route("POST", "/acts", ACT, act.begin),
    Route("POST", "/acts/{entry:path}/stop", ACT, act.stop),
    Route("GET", "/acts/{entry:path}", LOOK, act.show),
    Route("GET", "/messages", LOOK, messages.messages, "Messages"),
    Route("GET", "/search", LOOK, messages.results),
    Route("GET", "/messages/{id:path}/payload", PAYLOAD, message.payload),
    Route("GET", "/messages/{id:path}", LOOK, message.message),
    Route("GET", "/keys", LOOK, errors.keys, "Keys"),
    Route("GET", "/workers", LOOK, start.workers, "Workers"),
    Route("GET", "/audit", LOOK, act.latest, "Audit"),
    Route("GET", "/doctor", LOOK, start.doctor, "Doctor", without_tables=True),
]

TITLES = {route.pattern: route.title for route in ROUTES if route.title}
"""The navigation: titles by their paths."""
