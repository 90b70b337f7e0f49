"""Answers the requests to a page: knows who visits, checks what they may do, and answers trouble with words."""

from __future__ import annotations

import inspect
import secrets
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from outbox_tasks.errors import (
    ActBegun,
    ConfigurationError,
    DatabaseUnavailable,
    NotDead,
    OutboxError,
    SchemaMismatch,
    SchemaMissing,
    UnknownMessage,
    WebClosed,
    WebMisused,
    WebNotInstalled,
)
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.outbox import Outbox
from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.text import logger
from outbox_tasks.web import access, render, routes
from outbox_tasks.web.access import Passwords, Person, Role
from outbox_tasks.web.http import (
    LONGEST_FORM,
    NotFound,
    Refused,
    Request,
    Response,
    form_of,
    form_size,
    query_of,
    whole,
)
from outbox_tasks.web.looks import Looks, Searches
from outbox_tasks.web.visit import HTML, Visit, page

if TYPE_CHECKING:
    from celery import Celery

log = logger(__name__)

AT_ONCE = 8
"""Requests that may read the database at once. The others wait."""

PATIENCE = 5.0
"""Seconds for which a request waits for its turn."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""Of every answer."""

FOREVER = "public, max-age=31536000, immutable"

BASIC = 'Basic realm="outbox_tasks", charset="UTF-8"'

STATUS: dict[type[OutboxError], int] = {
    DatabaseUnavailable: 503, SchemaMissing: 503, SchemaMismatch: 503, WebNotInstalled: 500,
    UnknownMessage: 404, NotDead: 409, ActBegun: 409,
}  # fmt: skip
"""Of our errors. All others say that the input is bad."""

Who = Callable[[Any], "Person | Awaitable[Person | None] | None"]


@dataclass
class _Own:
    """What each process makes for itself."""

    store: Store
    acts: Runner
    looks: Looks = field(default_factory=Looks)
    searches: Searches = field(default_factory=Searches)
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(AT_ONCE))
    checked: bool = False
    """Whether the tables were seen to be of this release."""

    def check(self, *, read_only: bool) -> None:
        """Raises `SchemaMissing` or `SchemaMismatch` unless the tables are of this release. If they are,
        acts that another process has left go on."""
        if not self.checked:
            self.looks.get("tables", self.store.check_version, 2.0)
            self.checked = True
            if not read_only:
                self.acts.start()

    def close(self) -> None:
        self.acts.close()
        self.store.close()


class Answers:
    """What a page answers, whatever server asks: see `Page`."""

    def __init__(self, outbox: Outbox | Settings | None, who: Who | None, read_only: bool) -> None:
        self._outbox = outbox if isinstance(outbox, Outbox) else None
        self.settings = outbox.settings if isinstance(outbox, Outbox) else outbox or Settings()
        if who is None and not self.settings.web_users:
            raise WebClosed
        self.who = who
        self.read_only = read_only
        self._passwords = Passwords(self.settings.web_users)
        self._own = PerProcess(self._make)
        # What can't work fails now. It connects when it is first asked, and after a fork each process for itself.
        self._own.get()
        render.environment()

    def handle(self, request: Request, person: Person | None = None) -> Response:
        """Answer a request: of `person`, else of the one whom `who` names."""
        try:
            return self._static(request) or self._answer(request, person or self.person(request))
        except Exception as error:
            return self.trouble(request, error)

    def respond(self, head: Request, query: bytes, read: Callable[[int], bytes]) -> Response:
        """Answer a request whose query and form are still bytes: `read` gives so many of the form. A form is read only
        if the person is known."""
        try:
            request = replace(head, query=query_of(query))
            if request.method != "POST":
                return self.handle(request)
            person = self.person(request)
            size = form_size(request.headers, self.longest_form(request.path))
            request = replace(request, form=form_of(whole(read(size), size)))
        except Exception as error:
            return self.trouble(head, error)
        return self.handle(request, person)

    def close(self) -> None:
        """Close this process's connections, and end its threads."""
        if own := self._own.take():
            own.close()

    def _make(self) -> _Own:
        store = Store.connect(self.settings)
        return _Own(store, Runner(store))

    @property
    def app(self) -> Celery | None:
        """The application's Celery app, if the relay is installed in it: its broker is the relay's."""
        app = self._outbox and self._outbox.celery
        return app if app is not None and "outbox_relay" in vars(app) else None

    def person(self, request: Request) -> Person:
        """Who visits. Raises `Refused`."""
        found = self.found(request)
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            raise WebMisused(reason="`who` is asynchronous, and only the ASGI application can wait for it")
        return self.known(found)

    def found(self, request: Request) -> Person | Awaitable[Person | None] | None:
        """Who visits, as `who` or the passwords say. Raises `Refused`."""
        return self._passwords.person(request) if self.who is None else self.who(request.host)

    def known(self, person: Person | None) -> Person:
        """The person. Raises `Refused` if it is nobody."""
        if person is None and self.who is None:
            raise Refused(401, "Sign in with your name and your password.", [("WWW-Authenticate", BASIC)])
        if person is None:
            raise Refused(403, "Sign in to the application first: it does not know you.")
        return person

    def longest_form(self, path: str) -> int:
        """Bytes that a form sent to this path may have. One with a payload may be as large as the payload may be, and
        three times that as it is encoded."""
        if not path.endswith("/edit"):
            return LONGEST_FORM
        return LONGEST_FORM + 3 * max((one.largest for one in self.settings.destinations.values()), default=0)

    def is_static(self, request: Request) -> bool:
        """Whether it is answered from memory, to anybody."""
        return request.path.startswith("/static/")

    def _static(self, request: Request) -> Response | None:
        if not self.is_static(request):
            return None
        found = render.static().get(request.path.removeprefix("/static/"))
        if found is None or request.method not in ("GET", "HEAD"):
            raise NotFound("There is no such file.")
        return _finished(request, Response(200, [("Content-Type", found[0]), ("Cache-Control", FOREVER)], found[1]))

    def _answer(self, request: Request, person: Person) -> Response:
        if "\0" in request.path:
            raise NotFound("There is no such page.")
        route, arguments = routes.find(request.method, request.path)
        if person.role < route.role:
            raise Refused(403, f"You may not do this: it needs the role {route.role.name.lower()}.")
        if self.read_only and route.role is Role.ACT:
            raise Refused(403, "This page is read-only: nothing can be changed here.")
        if request.method == "POST":
            access.check_origin(request)
        own, token = self._own.get(), access.token_of(request)
        csrf = token or secrets.token_urlsafe(32)
        shared = own.store, own.looks, own.searches, own.acts
        visit = Visit(request, person, arguments, *shared, self.read_only, csrf, routes.TITLES, self.app)
        if not own.turns.acquire(timeout=PATIENCE):
            raise Refused(503, "The page is busy: too many people ask at once. It tries again by itself.")
        try:
            if not route.without_tables:
                own.check(read_only=self.read_only)
            response = route.page(visit)
        finally:
            own.turns.release()
        # It also tells the browser of a person who has signed in from others behind the same proxy.
        wanted = token is None and (self.who is None or visit.may(Role.ACT))
        new = [("Set-Cookie", access.cookie(visit.csrf, request))] if wanted else []
        return _finished(request, replace(response, headers=[*response.headers, *new]))

    def trouble(self, request: Request, error: Exception) -> Response:
        """A page that says what went wrong."""
        status, text = _said(error)
        names: dict[str, Any] = {"status": status, "text": text}
        if status < 500:  # to ask again changes nothing, and a browser might ask for the password again and again
            names["again"] = None
        try:
            response = page("trouble.html", request, names, titles=routes.TITLES, status=status)
        except Exception:
            log.exception("the page could not show its trouble")
            response = Response(500, [("Content-Type", HTML)], b"<h1>The page failed. See its log.</h1>")
        more = error.headers if isinstance(error, Refused) else ()
        return _finished(request, Response(response.status, [*response.headers, *more], response.body))


def _said(error: Exception) -> tuple[int, str]:
    """The status and the text of an error."""
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, OutboxError) and not isinstance(error, WebMisused | ConfigurationError):
        return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 400), str(error)
    log.error("the page failed", exc_info=error)
    return 500, "The page failed. Its log says why."


def _finished(request: Request, response: Response) -> Response:
    """The response with the headers that all have, and without its body if only the headers were asked for."""
    usual = {"Content-Length": str(len(response.body)), "Cache-Control": "no-store"}
    headers = [*({**usual, **dict(response.headers)}).items(), *HEADERS]
    if request.method == "HEAD":
        return Response(response.status, headers, b"")
    return replace(response, headers=headers)
