"""Where servers and other applications come in: ASGI, and WSGI by a2wsgi."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import lru_cache
from io import BytesIO
from typing import Any
from urllib.parse import quote

from a2wsgi import ASGIMiddleware
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.web.forms import longest_form

HOST, VISITOR = "outbox_tasks.host", "outbox_tasks.visitor"
"""In the scope: what the application gave, for `who`. In the WSGI environ: whom `who` named, as a future."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""

FOREVER = "public, max-age=31536000, immutable"

SESSION_SECONDS = 12 * 3600
"""So long somebody stays signed in."""

PRINTABLE = "".join(map(chr, range(33, 127)))
"""What stays as it is in a query."""


class Asgi:
    """The ASGI application: FastAPI and Starlette mount it, and uvicorn serves it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        secret = _secret(settings)
        name = f"outbox_{hashlib.sha256(secret.encode()).hexdigest()[:8]}"  # of two outboxes on one host, too

        @lru_cache(maxsize=16)
        def sessions(root: str, encrypted: bool) -> SessionMiddleware:
            path = quote(root) or "/"
            return SessionMiddleware(app, secret, name, SESSION_SECONDS, path, "lax", https_only=encrypted)

        self._app, self._sessions = app, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own, headers = _own(scope), Headers(scope=scope)
        # A proxy in front may speak HTTPS for us.
        encrypted = "https" in (scope.get("scheme"), headers.get("x-forwarded-proto", "").lower())
        await self._sessions(own["root_path"], encrypted)(own, receive, _finished(own, send))


def _own(scope: Scope) -> Scope:
    """A scope of our own: the application's session and routes stay the application's. Its path begins with its root.

    By the specification each path does. Some servers leave the root out. A proxy that strips its prefix leaves only the
    place of the mount: Starlette keeps the application's own root beside it.
    """
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    roots = [root, root.removeprefix(scope.get("app_root_path", "").rstrip("/"))]
    below = next((path.removeprefix(one) for one in roots if path == one or path.startswith(f"{one}/")), path)
    own = {**scope, HOST: scope, "root_path": root, "path": root + (below or "/"), "path_params": {}}
    own.pop("router", None)
    return own


def _finished(scope: Scope, send: Send) -> Send:
    """Sends with the headers that all answers have, and without the body if only the headers were asked for."""
    static = scope["path"].startswith(scope["root_path"] + "/static/")

    async def finished(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers["Cache-Control"] = FOREVER if static and message["status"] == 200 else "no-store"
        elif message["type"] == "http.response.body" and scope["method"] == "HEAD":
            message = {**message, "body": b""}
        await send(message)

    return finished


def _secret(settings: Settings) -> str:
    """What signs the sessions: the same in all processes of an outbox, and another one once a password changes. Whoever
    has a session can't guess passwords from it: each guess takes long."""
    passwords = sorted((name, user.password) for name, user in settings.web_users.items())
    place = f"{settings.database_url}\0{settings.database_schema}"
    return hashlib.scrypt(json.dumps(passwords).encode(), salt=place.encode(), n=2**14, r=8, p=1).hex()


class Wsgi:
    """The WSGI application, for Flask, Django and gunicorn. An event loop in a thread runs the ASGI application."""

    def __init__(self, app: Asgi, settings: Settings, who: Callable[[Any], Any] | None) -> None:
        self._who, self._longest = who, longest_form(settings)
        self._loops = PerProcess(lambda: _Loop(app))

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        chunks = self._loops.get().application(self._whole(environ), start_response)
        try:
            for chunk in chunks:  # noqa: UP028  # not `yield from`: that would end them at once if nobody reads on
                yield chunk
        finally:
            for _ in chunks:  # the ASGI application waits for ever for somebody who went away
                pass

    def close(self) -> None:
        """End this process's thread."""
        if loop := self._loops.take():
            loop.close()

    def _whole(self, environ: dict[str, Any]) -> Any:
        """An environ that a2wsgi can read, with all of the body, and who visits."""
        size = str(environ.get("CONTENT_LENGTH") or "0")
        size = size if size.isascii() and size.isdigit() and len(size) < 12 else "0"
        body = b""
        if 0 < int(size) <= self._longest:
            body = environ["wsgi.input"].read(int(size))
            if len(body) != int(size):  # part of a form is none
                body, size = b"", "0"
        path = environ.get("PATH_INFO", "").encode("latin-1", "replace").decode("utf-8", "replace")
        whole = {
            **environ,
            "CONTENT_LENGTH": size,
            "PATH_INFO": path.encode().decode("latin-1"),
            "QUERY_STRING": quote(environ.get("QUERY_STRING", "").encode("latin-1", "replace"), safe=PRINTABLE),
            "wsgi.input": BytesIO(body),
        }
        if self._who is not None:
            whole[VISITOR] = visitor = Future[Any]()
            try:  # in the application's thread: it may look at its context
                visitor.set_result(self._who(environ))
            except Exception as error:
                visitor.set_exception(error)
        return whole


class _Loop:
    """An event loop in a thread."""

    def __init__(self, app: ASGIApp) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outbox-page", daemon=True)
        self._thread.start()
        self.application = ASGIMiddleware(app, loop=self._loop)  # type: ignore[arg-type]  # its own names of types

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
