"""The page as an ASGI application: FastAPI, Starlette, uvicorn. The pages run in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from outbox_tasks.per_process import PerProcess
from outbox_tasks.web.http import Request, Response, check_form, fields, path_of, query_of, too_long

if TYPE_CHECKING:
    from outbox_tasks.web.access import Person
    from outbox_tasks.web.page import Page

T = TypeVar("T")

THREADS = 12
"""More than may read the database at once, so that people are told that the page is busy."""

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Asgi:
    """The ASGI application of a page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._threads = PerProcess(lambda: ThreadPoolExecutor(THREADS, thread_name_prefix="outbox-page"))

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            response = await self._respond(scope, receive)
            headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            await send({"type": "http.response.body", "body": response.body})
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _respond(self, scope: dict[str, Any], receive: Receive) -> Response:
        page, request = self._page, _head(scope)
        try:
            request = replace(request, path=_path(scope), query=query_of(scope.get("query_string", b"")))
            if page.is_static(request):
                return page.handle(request)
            person = await self._person(request)
            if request.method == "POST":
                longest = page.longest_form(request.path)
                check_form(request.headers, longest)
                request = replace(request, form=fields(await _body(receive, longest)))
        except Exception as error:
            return page.trouble(request, error)
        return await self._in_thread(page.handle, request, person)

    async def _person(self, request: Request) -> Person:
        if self._page.who is not None and inspect.iscoroutinefunction(self._page.who):
            return self._page.known(await self._page.who(request.host))
        return await self._in_thread(self._page.person, request)

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads.get(), function, *arguments)


def _head(scope: dict[str, Any]) -> Request:
    return Request(
        method=scope["method"],
        path="/",
        root=scope.get("root_path", "").rstrip("/"),
        headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
        host=scope,
        secure=scope.get("scheme") == "https",
    )


def _path(scope: dict[str, Any]) -> str:
    """The path below the mount point. By the specification the path holds it; some servers leave it out."""
    root = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    below = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path
    return path_of(below.encode("utf-8", "surrogateescape"))


async def _body(receive: Receive, longest: int) -> bytes:
    """The whole form. Raises `Refused`."""
    found, more = bytearray(), True
    while more:
        message = await receive()
        found += message.get("body", b"")
        more = message.get("more_body", False)
        if len(found) > longest:
            raise too_long(longest)
    return bytes(found)


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is opened at the start: connections open when they are needed."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
