"""Which function answers which address. One line a page; the first that fits counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette import routing
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from outbox_tasks.web.access import Role
from outbox_tasks.web.pages import (
    act,
    archive,
    audit,
    destinations,
    doctor,
    edit,
    errors,
    keys,
    message,
    messages,
    search,
    start,
    workers,
)
from outbox_tasks.web.visit import Visit


class Text(Convertor[str]):
    """A part of a path: any text, also with slashes and new lines."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", Text())


@dataclass(frozen=True)
class Route:
    """A page. With a `title`, it is in the navigation."""

    method: str
    pattern: str
    """A path. A name in braces stands for any text, also with slashes: it becomes one of the visit's `arguments`."""
    role: Role
    page: Callable[[Visit], Response]
    title: str = ""
    without_tables: bool = False
    """Whether it can be shown while the tables are missing, or are those of another release."""

    def made(self, endpoint: Callable[..., object]) -> routing.Route:
        """It as Starlette knows it: `endpoint` answers."""
        return routing.Route(re.sub(r"\{(\w+)\}", r"{\1:text}", self.pattern), endpoint, methods=[self.method])


LOOK, PAYLOAD, ACT = Role.LOOK, Role.PAYLOAD, Role.ACT

ROUTES = [
    Route("GET", "/", LOOK, start.start, "Start", without_tables=True),
    Route("GET", "/destinations/{name}", LOOK, destinations.destination),
    Route("POST", "/destinations/{name}/pause", ACT, destinations.pause),
    Route("POST", "/destinations/{name}/resume", ACT, destinations.resume),
    Route("POST", "/destinations/{name}/limit", ACT, destinations.limit),
    Route("POST", "/destinations/{name}/clear-limits", ACT, destinations.clear_limits),
    Route("GET", "/errors", LOOK, errors.errors, "Errors"),
    Route("GET", "/errors/{group}", LOOK, errors.group),
    Route("GET", "/acts/new", ACT, act.new),
    Route("POST", "/acts", ACT, act.begin),
    Route("POST", "/acts/{entry}/stop", ACT, act.stop),
    Route("GET", "/acts/{entry}", LOOK, act.show),
    Route("GET", "/messages", LOOK, messages.messages, "Messages"),
    Route("GET", "/search", LOOK, search.found),
    Route("GET", "/messages/{id}/payload", PAYLOAD, message.payload),
    Route("GET", "/messages/{id}/edit", ACT, edit.edit),
    Route("POST", "/messages/{id}/edit", ACT, edit.save),
    Route("GET", "/messages/{id}", LOOK, message.message),
    Route("GET", "/keys", LOOK, keys.keys, "Keys"),
    Route("GET", "/workers", LOOK, workers.workers, "Workers"),
    Route("GET", "/archive", LOOK, archive.archive, "Archive"),
    Route("GET", "/audit", LOOK, audit.audit, "Audit"),
    Route("GET", "/audit/{entry}/payload", PAYLOAD, audit.former_payload),
    Route("GET", "/doctor", LOOK, doctor.doctor, "Doctor", without_tables=True),
]

TITLES = {route.pattern: route.title for route in ROUTES if route.title}
"""The navigation: titles by their paths."""
