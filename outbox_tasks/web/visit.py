"""One request of one person: what a page's function is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.problems import Connections
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable
from outbox_tasks.web import render
from outbox_tasks.web.access import Person, Role
from outbox_tasks.web.forms import TOKEN, Fields, fields_of
from outbox_tasks.web.looks import Looks, Searches

T = TypeVar("T")

LONGEST_REASON = 500
"""Characters of the reason for an act."""

FRESH = 1.9
"""Seconds for which a look serves all who watch: a little less than a browser waits. So ten who watch cost as many
looks as two."""


@dataclass(frozen=True)
class Visit:
    """One request of one person."""

    request: Request
    form: Fields
    person: Person
    connections: Connections
    looks: Looks
    searches: Searches
    acts: Runner
    """People's acts in the background."""
    read_only: bool

    @property
    def store(self) -> Store:
        return self.connections.store

    @cached_property
    def query(self) -> Fields:
        """The fields of the address."""
        return fields_of(self.request.query_params.multi_items())

    @property
    def arguments(self) -> dict[str, str]:
        """What the path names."""
        return self.request.path_params

    @property
    def csrf(self) -> str:
        """What each form must hold."""
        return str(self.request.session.get(TOKEN, ""))

    @property
    def settings(self) -> Settings:
        return self.store.settings

    def ask(self, name: str) -> str | None:
        """A value of the query, without spaces around it."""
        return _first(self.query.get(name))

    def said(self, name: str) -> str | None:
        """A value of the form, without spaces around it."""
        return _first(self.form.get(name))

    def why(self) -> str:
        """The reason that a person gives for an act. Raises `HTTPException` if there is none."""
        reason = storable(self.said("why"))
        if reason is None or len(reason) > LONGEST_REASON:
            raise HTTPException(400, f"Say why, in at most {LONGEST_REASON} characters: the audit keeps it.")
        return reason

    def may(self, role: Role) -> bool:
        """Whether the person may do this here."""
        return self.person.role >= role and not (role is Role.ACT and self.read_only)

    def url(self, path: str, **query: object) -> str:
        """The address of a page: see `render.url`."""
        return render.url(self.request, path, **query)

    def look(self, name: str, read: Callable[[], T], *, seconds: float = FRESH) -> T:
        """What `read` found within the last seconds, for all who watch. `name` holds all that `read` depends on."""
        return self.looks.get(name, read, seconds)

    def show(self, template: str, *, status: int = 200, **names: Any) -> Response:
        """A page."""
        return render.show(self.request, template, {"visit": self, **names}, status)

    def go(self, path: str, **query: object) -> Response:
        """Send the browser to another page, after a form."""
        return render.go(self.request, path, **query)

    def download(self, content: bytes, name: str, size: int | None = None, more: Iterable[bytes] = ()) -> Response:
        """Bytes that a message brought, as a file. No browser shows them as a page. `name` is ASCII. `more`: the rest,
        if they are not all; `size`: how many there are then."""
        kind, headers = "application/octet-stream", {"Content-Disposition": f'attachment; filename="{name}"'}
        if size is None or size == len(content) or self.request.method == "HEAD":
            headers |= {} if size is None else {"Content-Length": str(size)}
            return Response(content, 200, headers, kind)
        return StreamingResponse(chain((content,), more), 200, {**headers, "Content-Length": str(size)}, kind)


def _first(values: list[str] | None) -> str | None:
    return (values[0].strip() or None) if values else None
