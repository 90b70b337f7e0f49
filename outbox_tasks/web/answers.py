"""Answers the requests to a page: knows who visits, checks what they may do, and answers trouble with words."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from anyio import Semaphore, fail_after
from anyio.lowlevel import RunVar
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from outbox_tasks.errors import (
    ActBegun,
    ConfigurationError,
    DatabaseUnavailable,
    NotDead,
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
from outbox_tasks.web.forms import Fields, form_of, give_token
from outbox_tasks.web.looks import Looks, Searches
from outbox_tasks.web.mount import HOST, VISITOR
from outbox_tasks.web.sign_in import SignIn
from outbox_tasks.web.visit import Visit

if TYPE_CHECKING:
    from celery import Celery

log = logger(__name__)

AT_ONCE = 8
"""Requests that may read the database at once. The others wait."""

PATIENCE = 5.0
"""Seconds for which a request waits for its turn."""

STATUS: dict[type[OutboxError], int] = {
    DatabaseUnavailable: 503, SchemaMissing: 503, SchemaMismatch: 503, UnknownMessage: 404, NotDead: 409, ActBegun: 409,
}  # fmt: skip
"""Of our errors. All others say that the input is bad."""

Who = Callable[[Any], "Person | Awaitable[Person | None] | None"]


@dataclass
class _Own:
    """What each process makes for itself."""

    connections: Connections
    acts: Runner
    looks: Looks = field(default_factory=Looks)
    searches: Searches = field(default_factory=Searches)
    checked: bool = False
    """Whether the tables were seen to be of this release."""

    def check(self, *, read_only: bool) -> None:
        """Raises `SchemaMissing` or `SchemaMismatch` unless the tables are of this release. If they are,
        acts that another process has left go on."""
        if not self.checked:
            self.looks.get("tables", self.connections.store.check_version, 2.0)
            self.checked = True
            if not read_only:
                self.acts.start()

    def close(self) -> None:
        self.acts.close()
        self.connections.close()


class Answers:
    """What a page answers: see `Page`. `app` is the Starlette application."""

    def __init__(self, settings: Settings, outbox: Outbox | None, who: Who | None, read_only: bool) -> None:
        self.settings, self._outbox, self._who, self._read_only = settings, outbox, who, read_only
        self._sign_in = SignIn(settings.web_users)
        self._own = PerProcess(self._make)
        self._turns = RunVar[Semaphore]("turns")  # of each event loop
        # What can't work fails now. It connects when it is first asked, and after a fork each process for itself.
        self._own.get()
        static = Mount("/static", StaticFiles(directory=render.STATIC))
        signing = [
            Route("/sign-in", self._ask_to_sign_in, methods=["GET"]),
            Route("/sign-in", self._let_in, methods=["POST"]),
            Route("/sign-out", self._let_out, methods=["POST"]),
        ]
        pages: list[BaseRoute] = [route.made(self._endpoint(route)) for route in routes.ROUTES]
        self.app = Starlette(
            routes=[static, *(signing if who is None else []), *pages],
            exception_handlers={HTTPException: self._trouble},
            lifespan=self._life,
        )
        self.app.router.redirect_slashes = False
        self.app.state.titles = routes.TITLES

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        yield  # connections open when they are needed
        self.close()

    def close(self) -> None:
        """Close this process's connections, and end its threads."""
        if own := self._own.take():
            own.close()

    def _make(self) -> _Own:
        connections = Connections(self.settings, self._celery)
        return _Own(connections, Runner(connections.store))

    @property
    def _celery(self) -> Celery | None:
        """The application's Celery app, if the relay is installed in it: its broker is the relay's."""
        app = self._outbox and self._outbox.celery
        return app if app is not None and "outbox_relay" in vars(app) else None

    def _endpoint(self, route: routes.Route) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await self._answer(request, lambda: self._show_page(request, route))

        return endpoint

    async def _answer(self, request: Request, make: Callable[[], Awaitable[Response]]) -> Response:
        """What `make` returns, or a page that says what went wrong."""
        try:
            return await make()
        except Exception as error:
            return await self._trouble(request, error)

    async def _show_page(self, request: Request, route: routes.Route) -> Response:
        person = await self._person(request)
        if person is None and self._who is None:
            return self._sign_in.ask(request, 401)
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
            form = await form_of(request, self.settings)
        elif self._who is None or (person.role is Role.ACT and not self._read_only):
            give_token(request)
        own = self._own.get()
        shared = own.connections, own.looks, own.searches, own.acts
        visit = Visit(request, form, person, *shared, self._read_only)
        async with self._turn():
            return await run_in_threadpool(self._run, route, visit, own)

    def _run(self, route: routes.Route, visit: Visit, own: _Own) -> Response:
        with suppress(OutboxError) if route.without_tables else nullcontext():
            own.check(read_only=self._read_only)
        return route.page(visit)

    async def _person(self, request: Request) -> Person | None:
        """Who visits."""
        if self._who is None:
            return self._sign_in.person(request)
        environ = request.scope.get("wsgi_environ", {})
        if VISITOR in environ:
            found = environ[VISITOR].result()
            if inspect.isawaitable(found):
                if inspect.iscoroutine(found):
                    found.close()
                raise WebMisused(reason="`who` is asynchronous, and only the ASGI application can wait for it")
            return found  # type: ignore[no-any-return]
        visitor = await run_in_threadpool(self._who, request.scope[HOST])
        return await visitor if inspect.isawaitable(visitor) else visitor

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until fewer than `AT_ONCE` requests read the database. Raises `HTTPException`."""
        turns = self._turns.get(None)
        if turns is None:
            self._turns.set(turns := Semaphore(AT_ONCE))
        try:
            with fail_after(PATIENCE):
                await turns.acquire()
        except TimeoutError:
            raise HTTPException(
                503, "The page is busy: too many people ask at once. It tries again by itself."
            ) from None
        try:
            yield
        finally:
            turns.release()

    async def _ask_to_sign_in(self, request: Request) -> Response:
        return render.go(request, "/")

    async def _let_in(self, request: Request) -> Response:
        async def make() -> Response:
            return self._sign_in.let_in(request, await form_of(request, self.settings))

        return await self._answer(request, make)

    async def _let_out(self, request: Request) -> Response:
        async def make() -> Response:
            await form_of(request, self.settings)
            request.session.clear()
            return render.go(request, "/")

        return await self._answer(request, make)

    async def _trouble(self, request: Request, error: Exception) -> Response:
        """A page that says what went wrong."""
        status, text, headers = _said(request, error)
        names: dict[str, Any] = {"status": status, "text": text}
        if status < 500:  # to ask again changes nothing
            names["again"] = None
        return render.show(request, "trouble.html", names, status, headers)


def _said(request: Request, error: Exception) -> tuple[int, str, Mapping[str, str] | None]:
    """The status, the text and more headers of an error."""
    if isinstance(error, HTTPException):
        words = {404: "There is no such page.", 405: f"This address takes no {request.method}."}
        plain = error.detail == HTTPStatus(error.status_code).phrase
        return error.status_code, words.get(error.status_code, error.detail) if plain else error.detail, error.headers
    if isinstance(error, OutboxError) and not isinstance(error, WebMisused | ConfigurationError):
        return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 400), str(error), None
    log.error("the page failed", exc_info=error)
    return 500, "The page failed. Its log says why.", None
