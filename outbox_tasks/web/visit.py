"""One request of one person: a page's function gets it, and returns a response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.problems import Connections
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable
from outbox_tasks.web import render
from outbox_tasks.web.access import Person, Role
from outbox_tasks.web.forms import Fields, fields_of
from outbox_tasks.web.looks import Looks

T = TypeVar("T")

ROWS_SHOWN, FEW_SHOWN = 50, 20
"""Rows of a page's main table, and of a table beside others."""

REASON_CHARACTERS = 500

LOOK_SECONDS = 1.9
"""So long a look serves all who watch: a little less than a browser waits. Ten who watch cost as many looks as two."""


@dataclass
class Shared:
    """What all visits in a process share."""

    connections: Connections
    acts: Runner
    """People's acts in the background."""
    looks: Looks = field(default_factory=Looks)

    def close(self) -> None:
        self.acts.close()
        self.connections.close()


@dataclass(frozen=True)
class Visit:
    """One request of one person."""

    request: Request
    form: Fields
    person: Person
    shared: Shared
    read_only: bool

    @property
    def store(self) -> Store:
        return self.shared.connections.store

    @property
    def settings(self) -> Settings:
        return self.store.settings

    @property
    def acts(self) -> Runner:
        return self.shared.acts

    @cached_property
    def query(self) -> Fields:
        return fields_of(self.request.query_params.multi_items())

    @property
    def arguments(self) -> dict[str, str]:
        """What the path names."""
        return self.request.path_params

    def query_value(self, name: str) -> str | None:
        """A value of the address, without spaces around it."""
        return _first(self.query.get(name))

    def form_value(self, name: str) -> str | None:
        """A value of the form, without spaces around it."""
        return _first(self.form.get(name))

    def why(self) -> str:
        """The reason that a person gives for an act. Raises `HTTPException` if there is none."""
        reason = storable(self.form_value("why"))
        if reason is None or len(reason) > REASON_CHARACTERS:
            raise HTTPException(400, f"Say why, in at most {REASON_CHARACTERS} characters: the audit keeps it.")
        return reason

    def may(self, role: Role) -> bool:
        return self.person.role >= role and not (role is Role.ACT and self.read_only)

    def url(self, path: str, **query: object) -> str:
        return render.url(self.request, path, **query)

    def look(self, name: str, read: Callable[[], T], *, seconds: float = LOOK_SECONDS) -> T:
        """What `read` returned within the last seconds, to anybody. The name says all that the answer depends on."""
        return self.shared.looks.get(name, read, seconds)

    def forget(self, *prefixes: str) -> None:
        """Drop what was read, because this visit has changed it."""
        for prefix in prefixes:
            self.shared.looks.forget(prefix)

    def show(self, template: str, *, status: int = 200, **names: Any) -> Response:
        return render.show(self.request, template, {"visit": self, **names}, status)

    def go(self, path: str, **query: object) -> Response:
        return render.go(self.request, path, **query)


def _first(values: list[str] | None) -> str | None:
    return (values[0].strip() or None) if values else None
