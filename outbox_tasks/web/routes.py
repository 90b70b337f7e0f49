"""Which function answers which address. One line a page; the first that fits counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from outbox_tasks.web.access import Role
from outbox_tasks.web.http import NotFound, Refused, Response
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
    start,
    workers,
)
from outbox_tasks.web.visit import Visit


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

    @cached_property
    def fits(self) -> re.Pattern[str]:
        """The pattern as a regular expression."""
        parts = re.split(r"\{(\w+)\}", self.pattern)
        texts = [f"(?P<{part}>.+)" if odd % 2 else re.escape(part) for odd, part in enumerate(parts)]
        return re.compile("".join(texts), re.DOTALL)


LOOK, PAYLOAD, ACT = Role.LOOK, Role.PAYLOAD, Role.ACT

ROUTES = [
    Route("GET", "/", LOOK, start.start, "Start", without_tables=True),
    Route("GET", "/destinations/{name}", LOOK, destinations.destination),
    Route("POST", "/destinations/{name}/pause", ACT, destinations.pause),
    Route("POST", "/destinations/{name}/resume", ACT, destinations.resume),
    Route("GET", "/errors", LOOK, errors.errors, "Errors"),
    Route("GET", "/errors/{group}", LOOK, errors.group),
    Route("GET", "/acts/new", ACT, act.new),
    Route("POST", "/acts", ACT, act.begin),
    Route("POST", "/acts/{entry}/stop", ACT, act.stop),
    Route("GET", "/acts/{entry}", LOOK, act.show),
    Route("GET", "/messages", LOOK, messages.messages, "Messages"),
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


def find(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """The route of a request, and the parts of its path. Raises `Refused`."""
    allowed = set()
    for route in ROUTES:
        if found := route.fits.fullmatch(path):
            if route.method == ("GET" if method == "HEAD" else method):
                return route, found.groupdict()
            allowed.add(route.method)
    if allowed:
        raise Refused(405, f"This address takes no {method}.", [("Allow", ", ".join(sorted(allowed)))])
    raise NotFound("There is no such page.")
