"""The page as an ASGI application: for FastAPI, Starlette, uvicorn. The pages run in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeVar

from outbox_tasks.per_process import PerProcess
from outbox_tasks.web.access import Person
from outbox_tasks.web.answers import Answers
from outbox_tasks.web.http import Refused, Request, Response, form_of, form_size, query_of, whole

T = TypeVar("T")

THREADS = 12
"""More than may read the database at once. So people are told that the page is busy, and who visits is asked."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Asgi:
    """The ASGI application of a page."""

    def __init__(self, page: Answers) -> None:
        self._page = page
        self._threads = PerProcess(lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="outbox-page"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            response = await self._respond(scope, receive)
            headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            body: bytes | None = response.body
            more = iter(response.more)
            while body is not None:
                following = await self._in_thread(next, more, None)
                await send({"type": "http.response.body", "body": body, "more_body": following is not None})
                body = following
        else:
            await send({"type": "websocket.close", "code": 1000})

    def close(self) -> None:
        """End this process's threads."""
        if threads := self._threads.take():
            threads.shutdown()

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        page, request = self._page, _head(scope)
        try:
            request = replace(request, query=query_of(scope.get("query_string", b"")))
            if page.is_static(request):
                return page.handle(request)
            person = await self._person(request)
            if request.method == "POST":
                size = form_size(request.headers, page.longest_form(request.path))
                request = replace(request, form=form_of(await _body(receive, size)))
        except Exception as error:
            return page.trouble(request, error)
        return await self._in_thread(page.handle, request, person)

    async def _person(self, request: Request) -> Person:
        found = await self._in_thread(self._page.found, request)
        return self._page.known(await found if inspect.isawaitable(found) else found)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        run = copy_context().run  # `who` may look at the host's context variables
        return await asyncio.get_running_loop().run_in_executor(self._threads.get(), run, function, *arguments)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Nothing is opened at the start: connections open when they are needed."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self._page.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def _head(scope: Scope) -> Request:
    root = scope.get("root_path", "").rstrip("/")
    path = scope["path"]
    # By the specification the path begins with the root. Some servers leave it out. A proxy that strips its prefix
    # leaves only the place of the mount: Starlette keeps the application's own root beside it.
    mounts = [root, root.removeprefix(scope.get("app_root_path", "").rstrip("/"))]
    below = next((path.removeprefix(one) for one in mounts if path == one or path.startswith(f"{one}/")), path)
    return Request(
        method=scope["method"],
        path=below or "/",
        root=root,
        headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
        host=scope,
        secure=scope.get("scheme") == "https",
        client=(scope.get("client") or ("",))[0],
    )


async def _body(receive: Receive, size: int) -> bytes:
    """The form. Raises `Refused`."""
    found, more = bytearray(), True
    while more and len(found) <= size:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The browser went away.")
        found += message.get("body", b"")
        more = message.get("more_body", False)
    return whole(bytes(found), size)
