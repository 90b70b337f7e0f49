"""Where servers and other applications come in: ASGI, and WSGI by a2wsgi."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from io import BytesIO
from typing import Any
from urllib.parse import quote

from a2wsgi import ASGIMiddleware
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outbox_tasks.per_process import PerProcess
from outbox_tasks.settings import Settings
from outbox_tasks.web.forms import FORM_BYTES

HOST_SCOPE = "outbox_tasks.host"
"""In the scope of the page: the scope that the application gave. The hook `who` gets it."""

VISITOR = "outbox_tasks.visitor"
"""In the WSGI environ: a future of the person whom `who` named."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer."""

PRINTABLE = "".join(map(chr, range(33, 127)))
"""The characters of a query that are not quoted."""


class Asgi:
    """The ASGI application: FastAPI and Starlette mount it, and uvicorn serves it."""

    def __init__(self, app: ASGIApp, settings: Settings, *, signs_in: bool) -> None:
        self._app, self._signs_in = app, signs_in
        self._secret = _secret(settings) if signs_in else ""
        # Two outboxes on one host have two cookies.
        self._cookie = f"outbox_{hashlib.sha256(self._secret.encode()).hexdigest()[:8]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = _own_scope(scope)
        app = self._with_session(own) if self._signs_in else self._app
        await app(own, receive, _sending(own, send))

    def _with_session(self, scope: Scope) -> ASGIApp:
        # A proxy in front may speak HTTPS for the page.
        is_https = "https" in (scope.get("scheme"), Headers(scope=scope).get("x-forwarded-proto", "").lower())
        path = quote(scope["root_path"]) or "/"
        return SessionMiddleware(self._app, self._secret, self._cookie, 12 * 3600, path, "lax", https_only=is_https)


def _own_scope(scope: Scope) -> Scope:
    """A scope of the page's own: the application's session and routes stay the application's. Its path begins with its
    root.

    By the specification each path does. Some servers leave the root out. A proxy that strips its prefix leaves only the
    place of the mount: Starlette keeps the application's own root beside it.
    """
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    roots = [root, root.removeprefix(scope.get("app_root_path", "").rstrip("/"))]
    below = next((path.removeprefix(prefix) for prefix in roots if f"{path}/".startswith(f"{prefix}/")), path)
    own = {**scope, HOST_SCOPE: scope, "root_path": root, "path": root + (below or "/"), "path_params": {}}
    own.pop("router", None)
    return own


def _sending(scope: Scope, send: Send) -> Send:
    """Sends with the headers of every answer, and without a body if only the headers were asked for."""
    is_static = scope["path"].startswith(scope["root_path"] + "/static/")

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            forever = is_static and message["status"] == 200
            headers["Cache-Control"] = "public, max-age=31536000, immutable" if forever else "no-store"
        elif message["type"] == "http.response.body" and scope["method"] == "HEAD":
            message = {**message, "body": b""}
        await send(message)

    return send_on


def _secret(settings: Settings) -> str:
    """What signs the sessions: the same in all processes of an outbox, and another one once a password changes. Nobody
    who has a session can guess passwords from it: each guess takes long."""
    passwords = sorted((name, user.password) for name, user in settings.web_users.items())
    place = f"{settings.database_url}\0{settings.database_schema}"
    return hashlib.scrypt(json.dumps(passwords).encode(), salt=place.encode(), n=2**14, r=8, p=1).hex()


class Wsgi:
    """The WSGI application, for Flask, Django and gunicorn. An event loop in a thread runs the ASGI application."""

    def __init__(self, app: Asgi, settings: Settings, who: Callable[[Any], Any] | None) -> None:
        self._who = who
        self._loops = PerProcess(lambda: _Loop(app))

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        chunks = self._loops.get().application(self._readable(environ), start_response)
        try:
            for chunk in chunks:  # noqa: UP028  # `yield from` would close the chunks at once if nobody reads on
                yield chunk
        finally:
            for _ in chunks:  # or the ASGI application would wait for ever for a client that went away
                pass

    def close(self) -> None:
        if loop := self._loops.take():
            loop.close()

    def _readable(self, environ: dict[str, Any]) -> Any:
        """An environ that a2wsgi can read, with all of the body, and the person who visits."""
        size = str(environ.get("CONTENT_LENGTH") or "0")
        size = size if size.isascii() and size.isdigit() and len(size) < 12 else "0"
        body, kind = b"", environ.get("CONTENT_TYPE", "")
        if 0 < int(size) <= FORM_BYTES:
            body = environ["wsgi.input"].read(int(size))
            if len(body) != int(size):  # a part of a form is no form
                body, size, kind = b"", "0", ""
        path = environ.get("PATH_INFO", "").encode("latin-1", "replace").decode("utf-8", "replace")
        readable = {
            **environ,
            "CONTENT_LENGTH": size,
            "CONTENT_TYPE": kind,
            "PATH_INFO": path.encode().decode("latin-1"),
            "QUERY_STRING": quote(environ.get("QUERY_STRING", "").encode("latin-1", "replace"), safe=PRINTABLE),
            "wsgi.input": BytesIO(body),
        }
        if self._who is not None:
            readable[VISITOR] = visitor = Future[Any]()
            try:  # in the application's thread: it may look at its context
                visitor.set_result(self._who(environ))
            except Exception as error:
                visitor.set_exception(error)
        return readable


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
