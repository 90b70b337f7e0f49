"""`Page`, which an application mounts: it knows who visits, checks what they may do, and answers trouble with words."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from starlette import routing
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from outbox_tasks.errors import (
    ActConflict,
    ConfigurationError,
    DatabaseUnavailable,
    OutboxError,
    SchemaMismatch,
    SchemaMissing,
    UnknownMessage,
    WebMisused,
)
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.problems import Connections
from outbox_tasks.outbox import Outbox
from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.text import logger
from outbox_tasks.web import render, routes
from outbox_tasks.web.access import Person, Role
from outbox_tasks.web.forms import Fields, form_of
from outbox_tasks.web.mount import HOST_SCOPE, VISITOR, Asgi, Wsgi
from outbox_tasks.web.sign_in import SignIn
from outbox_tasks.web.visit import Shared, Visit

log = logger(__name__)

READERS_AT_ONCE = 8
"""Requests that may read the database at the same time. The others wait for their turn."""

STATUS: dict[type[OutboxError], int] = {
    DatabaseUnavailable: 503, SchemaMissing: 503, SchemaMismatch: 503, UnknownMessage: 404, ActConflict: 409,
}  # fmt: skip
"""The HTTP status of our errors. All other errors say that the input is bad: 400."""

Who = Callable[[Any], "Person | Awaitable[Person | None] | None"]


class Page:
    """The page over one outbox. Mount `asgi` or `wsgi`.

    `who` says who visits: it is given what the server gives (the ASGI scope or the WSGI environ), and returns a
    `Person`, or None for nobody. For `asgi` it may be asynchronous. Without `who`, people sign in with a name and a
    password of the setting `web_users`. With `read_only`, nobody can change anything.
    """

    def __init__(
        self, outbox: Outbox | Settings | None = None, *, who: Who | None = None, read_only: bool = False
    ) -> None:
        self._outbox = outbox if isinstance(outbox, Outbox) else None
        self.settings = outbox.settings if isinstance(outbox, Outbox) else outbox or Settings()
        if who is None and not self.settings.web_users:
            raise WebMisused(
                reason="nobody could sign in. Add [web_users.<name>] with a password to the settings file. In an "
                "application, you can pass `who` to Page instead"
            )
        self._who, self._read_only = who, read_only
        self._sign_in = SignIn(self.settings)
        self._shared = PerProcess(self._make)
        self._turns = RunVar[CapacityLimiter]("turns")  # of each event loop
        # Settings that can't work fail here. The first look connects; after a fork each process connects for itself.
        self._shared.get()
        pages = [
            routing.Route(route.pattern, partial(self._answer, route), methods=[route.method])
            for route in routes.ROUTES
        ]
        static = routing.Mount("/static", StaticFiles(directory=render.STATIC))
        app = Starlette(
            routes=[static, *([] if who else self._sign_in.routes), *pages],
            middleware=[Middleware(ExceptionMiddleware, handlers={Exception: self._trouble})],
            exception_handlers={HTTPException: self._trouble},
        )
        app.router.redirect_slashes = False
        app.state.titles, app.state.signs_in = routes.TITLES, who is None
        self.asgi = Asgi(app, self.settings, signs_in=who is None)
        self.wsgi = Wsgi(self.asgi, self.settings, who)

    def close(self) -> None:
        """Close this process's connections, and end its threads."""
        self.wsgi.close()
        if shared := self._shared.take():
            shared.close()

    def _make(self) -> Shared:
        app = self._outbox and self._outbox.celery
        installed = app if app is not None and "outbox_relay" in vars(app) else None  # its broker is the relay's
        connections = Connections(self.settings, installed)
        return Shared(connections, Runner(connections.store))

    async def _answer(self, route: routes.Route, request: Request) -> Response:
        person = await self._person(request)
        if person is None and self._who is None:
            return self._sign_in.ask(request)
        if person is None:
            raise HTTPException(403, "Sign in to the application first: it does not know you.")
        if person.role < route.role:
            raise HTTPException(403, f"You may not do this: it needs the role {route.role.name.lower()}.")
        if self._read_only and route.role is Role.ACT:
            raise HTTPException(403, "This page is read-only: nothing can be changed here.")
        if "\0" in request.scope["path"]:
            raise HTTPException(404)
        form: Fields = {}
        if request.method == "POST":
            form = await form_of(request)
        visit = Visit(request, form, person, self._shared.get(), self._read_only)
        turns = self._turns.get(None)
        if turns is None:
            self._turns.set(turns := CapacityLimiter(READERS_AT_ONCE))
        return await to_thread.run_sync(self._run, route, visit, limiter=turns)

    def _run(self, route: routes.Route, visit: Visit) -> Response:
        with suppress(OutboxError) if route.without_tables else nullcontext():
            self._check_tables(visit.shared)
        return route.page(visit)

    def _check_tables(self, shared: Shared) -> None:
        """Raises `SchemaMissing` or `SchemaMismatch` unless the tables are of this release. If they are, acts that
        another process has left go on here."""
        shared.looks.get("tables", shared.connections.store.check_version, 60.0)
        if not self._read_only:
            shared.acts.start()

    async def _person(self, request: Request) -> Person | None:
        if self._who is None:
            return self._sign_in.person(request)
        if visitor := request.scope.get("wsgi_environ", {}).get(VISITOR):
            person = visitor.result()
            if inspect.iscoroutine(person):
                person.close()
                raise WebMisused(reason="`who` is asynchronous, and only the ASGI application can wait for it")
            return person  # type: ignore[no-any-return]
        answer = await run_in_threadpool(self._who, request.scope[HOST_SCOPE])
        return await answer if inspect.isawaitable(answer) else answer

    async def _trouble(self, request: Any, error: Exception) -> Response:
        status, text, headers = _in_words(request, error)
        again = {} if status >= 500 else {"again": None}  # to ask again would change nothing
        return render.show(request, "trouble.html", {"status": status, "text": text, **again}, status, headers)


def _in_words(request: Request, error: Exception) -> tuple[int, str, Mapping[str, str] | None]:
    """The status, the text and more headers for an error."""
    if isinstance(error, HTTPException):
        words = {404: "There is no such page.", 405: f"This address takes no {request.method}."}
        is_plain = error.detail == HTTPStatus(error.status_code).phrase
        text = words.get(error.status_code, error.detail) if is_plain else error.detail
        return error.status_code, text, error.headers
    if isinstance(error, OutboxError) and not isinstance(error, WebMisused | ConfigurationError):
        return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 400), str(error), None
    log.error("the page failed", exc_info=error)
    return 500, "The page failed. Its log says why.", None
