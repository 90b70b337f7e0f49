"""The page in a Django project: `path("outbox/", include("outbox_tasks.django.page"))` in `urls.py`.

Django says who visits: people sign in as they do elsewhere in the project. What they may do is said by the permissions
`outbox_tasks.look`, `outbox_tasks.payload` and `outbox_tasks.act`. Superusers have all of them.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt
from starlette.exceptions import HTTPException

from outbox_tasks.django.permissions import may
from outbox_tasks.django.project import outbox_of_project
from outbox_tasks.settings.django_project import alias_of, name_in_tests
from outbox_tasks.web import Page, Person, Role

REQUEST = "outbox_tasks.request"
"""Django's request, in the environ that the page gets."""


def person_of(environ: dict[str, Any]) -> Person | None:
    """Who visits, by Django's user and permissions. Raises `HTTPException`."""
    user = environ[REQUEST].user
    if not user.is_authenticated:
        return None
    roles = [role for role in Role if may(user, role.name.lower())]
    if not roles:
        raise HTTPException(403, f"{user} has none of the permissions outbox_tasks.look, .payload and .act.")
    return Person(user.get_username(), max(roles))


page = Page(outbox_of_project(), who=person_of)


@csrf_exempt  # the page has a check of its own, in every host
def show(request: Any, path: str) -> HttpResponse | StreamingHttpResponse:
    """Answer a request, or send people to the project's login first."""
    is_stranger = not (path.startswith("static/") or request.user.is_authenticated)
    if is_stranger and request.method == "GET" and "x-refresh" not in request.headers:
        return redirect_to_login(request.get_full_path())
    head: list[Any] = []
    chunks = page.wsgi(_environ(request, path), lambda *started: head.extend(started[:2]))
    body = chain((next(chunks),), chunks)
    status, headers = int(head[0].partition(" ")[0]), dict(head[1])
    if "content-disposition" in headers:  # it may be long
        return StreamingHttpResponse(body, status=status, headers=headers)
    answer = HttpResponse(b"".join(body), status=status, headers=headers)
    if name_in_tests(alias_of(page.settings.database_url)):
        page.close()  # nobody can drop a database that somebody is connected to
    return answer


def _environ(request: Any, path: str) -> dict[str, Any]:
    """As a WSGI server gives it: Django's request may have come by ASGI."""
    root = request.path.removesuffix(path).rstrip("/")
    return {
        **request.META,
        "SCRIPT_NAME": root.encode().decode("latin-1"),
        "PATH_INFO": f"/{path}".encode().decode("latin-1"),
        "wsgi.input": request,
        "wsgi.url_scheme": request.scheme,
        REQUEST: request,
    }


app_name = "outbox_tasks"
urlpatterns = [re_path(r"^(?P<path>[\s\S]*)\Z", show, name="page")]
