"""One request of one person: what a page's function is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from outbox_tasks import __version__
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable
from outbox_tasks.web import render
from outbox_tasks.web.access import Person, Role
from outbox_tasks.web.http import Refused, Request, Response
from outbox_tasks.web.looks import Looks, Searches

if TYPE_CHECKING:
    from celery import Celery

T = TypeVar("T")

LONGEST_REASON = 500
"""Characters of the reason for an act."""

HTML = "text/html; charset=utf-8"

FRESH = 1.9
"""Seconds for which a look serves all who watch: a little less than a browser waits. So ten who watch cost as many
looks as two."""


@dataclass(frozen=True)
class Visit:
    """One request of one person."""

    request: Request
    person: Person
    arguments: Mapping[str, str]
    """What the path names."""
    store: Store
    looks: Looks
    searches: Searches
    acts: Runner
    """People's acts in the background."""
    read_only: bool
    csrf: str
    titles: Mapping[str, str]
    app: Celery | None

    @property
    def settings(self) -> Settings:
        return self.store.settings

    def ask(self, name: str) -> str | None:
        """A value of the query, without spaces around it."""
        return _first(self.request.query.get(name))

    def said(self, name: str) -> str | None:
        """A value of the form, without spaces around it."""
        return _first(self.request.form.get(name))

    def why(self) -> str:
        """The reason that a person gives for an act. Raises `Refused` if there is none."""
        reason = storable(self.said("why"))
        if reason is None or len(reason) > LONGEST_REASON:
            raise Refused(400, f"Say why, in at most {LONGEST_REASON} characters: the audit keeps it.")
        return reason

    def may(self, role: Role) -> bool:
        """Whether the person may do this here."""
        return self.person.role >= role and not (role is Role.ACT and self.read_only)

    def url(self, path: str, **query: object) -> str:
        """The address of a page; values that are None are left out. A list gives the name several times. `path` may
        hold any text: it is quoted."""
        return address(self.request.root, path, query)

    def look(self, name: str, read: Callable[[], T], *, seconds: float = FRESH) -> T:
        """What `read` found within the last seconds, for all who watch. `name` holds all that `read` depends on."""
        return self.looks.get(name, read, seconds)

    def show(self, template: str, *, status: int = 200, **names: Any) -> Response:
        """A page."""
        return page(template, self.request, {"visit": self, **names}, titles=self.titles, status=status)

    def go(self, path: str, **query: object) -> Response:
        """Send the browser to another page, after a form."""
        return Response(303, [("Location", self.url(path, **query))], b"")

    def download(self, content: bytes, name: str, size: int | None = None, more: Iterable[bytes] = ()) -> Response:
        """Bytes that a message brought, as a file. No browser shows them as a page. `name` is ASCII. `more`: the rest,
        if they are not all; `size`: how many there are then."""
        kept = ("Content-Disposition", f'attachment; filename="{name}"')
        length = ("Content-Length", str(len(content) if size is None else size))
        return Response(200, [("Content-Type", "application/octet-stream"), kept, length], content, more)


def page(
    template: str, request: Request, names: Mapping[str, Any], *, titles: Mapping[str, str], status: int
) -> Response:
    """A template as a response. What `layout.html` needs is there without a visit too: trouble is shown by it."""
    root = request.root
    usual = {
        "visit": None,
        "Role": Role,
        "titles": titles,
        "here": request.path,
        "url": lambda path, **query: address(root, path, query),
        "static": lambda name: address(root, f"/static/{name}", {"v": render.version()}),
        "again": address(root, request.path, request.query) if request.method == "GET" else None,
        "version": __version__,
    }
    return Response(status, [("Content-Type", HTML)], render.rendered(template, {**usual, **names}))


def address(root: str, path: str, query: Mapping[str, object]) -> str:
    """A path below the place where the page is mounted, with this query."""
    given = {name: value for name, value in query.items() if value is not None}
    # A browser would take "/.." in a name for the folder above. A coded slash is none to it.
    quoted = re.sub(r"/(?=\.{1,2}(/|$))", "%2F", quote(root + path))
    return quoted + (f"?{urlencode(given, doseq=True)}" if given else "")


def _first(values: list[str] | None) -> str | None:
    return (values[0].strip() or None) if values else None
