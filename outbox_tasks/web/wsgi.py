"""The page as a WSGI application: Flask, Django without ASGI, waitress, gunicorn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from outbox_tasks.web.http import Request, Response, check_form, fields, path_of, query_of

if TYPE_CHECKING:
    from outbox_tasks.web.page import Page


class Wsgi:
    """The WSGI application of a page."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        response = self._respond(environ)
        status = f"{response.status} {HTTPStatus(response.status).phrase}"
        start_response(status, list(response.headers))
        return [response.body]

    def _respond(self, environ: dict[str, Any]) -> Response:
        page, request = self._page, self._head(environ)
        try:
            request = replace(
                request,
                path=path_of(environ.get("PATH_INFO", "").encode("latin-1")),
                query=query_of(environ.get("QUERY_STRING", "").encode("latin-1")),
            )
            if request.method != "POST":
                return page.handle(request)
            person = page.person(request)
            size = check_form(request.headers, page.longest_form(request.path))
            form = fields(environ["wsgi.input"].read(size))
        except Exception as error:
            return page.trouble(request, error)
        return page.handle(replace(request, form=form), person)

    def _head(self, environ: dict[str, Any]) -> Request:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
            for name, value in environ.items()
            if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        }
        return Request(
            method=environ["REQUEST_METHOD"],
            path="/",
            root=environ.get("SCRIPT_NAME", "").rstrip("/"),
            headers={name: value for name, value in headers.items() if value},
            host=environ,
            secure=environ.get("wsgi.url_scheme") == "https",
        )
