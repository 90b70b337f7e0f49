"""The page as a WSGI application: for Flask, waitress, gunicorn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from itertools import chain
from typing import Any

from outbox_tasks.web.answers import Answers
from outbox_tasks.web.http import Request


class Wsgi:
    """The WSGI application of a page."""

    def __init__(self, page: Answers) -> None:
        self._page = page

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING", "").encode("latin-1", "replace")
        response = self._page.respond(_head(environ), query, environ["wsgi.input"].read)
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", list(response.headers))
        return chain((response.body,), response.more)


def _head(environ: dict[str, Any]) -> Request:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    }
    return Request(
        method=environ["REQUEST_METHOD"],
        path=_decoded(environ.get("PATH_INFO", "")) or "/",
        root=_decoded(environ.get("SCRIPT_NAME", "")).rstrip("/"),
        headers=headers,
        host=environ,
        secure=environ.get("wsgi.url_scheme") == "https",
        client=environ.get("REMOTE_ADDR", ""),
    )


def _decoded(text: str) -> str:
    """WSGI hands bytes over as Latin-1. What is not UTF-8 names no page."""
    return text.encode("latin-1", "replace").decode("utf-8", "replace")
