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

from outbox_tasks.django.permissions import may
from outbox_tasks.django.project import outbox_of_project
from outbox_tasks.settings.django_project import alias_of, name_in_tests
from outbox_tasks.web import Page, Person, Role
from outbox_tasks.web.http import Refused, Request


def person_of(request: Any) -> Person | None:
    """Who visits, by Django's user and permissions. Raises `Refused`."""
    user = request.user
    if not user.is_authenticated:
        return None
    roles = [role for role in Role if may(user, role.name.lower())]
    if not roles:
        raise Refused(403, f"{user} has none of the permissions outbox_tasks.look, .payload and .act.")
    return Person(user.get_username(), max(roles))


page = Page(outbox_of_project(), who=person_of)


@csrf_exempt  # the page has a check of its own, in every host
def show(request: Any, path: str) -> HttpResponse | StreamingHttpResponse:
    """Answer a request, or send people to the project's login first."""
    head = _head(request, path)
    strange = not (page.is_static(head) or request.user.is_authenticated)
    if strange and request.method == "GET" and "hx-request" not in head.headers:
        return redirect_to_login(request.get_full_path())
    query = request.META.get("QUERY_STRING", "").encode("latin-1", "replace")
    response = page.respond(head, query, request.read)
    if name_in_tests(alias_of(page.settings.database_url)):
        page.close()  # nobody can drop a database that somebody is connected to
    if response.more:
        body = chain((response.body,), response.more)
        return StreamingHttpResponse(body, status=response.status, headers=dict(response.headers))
    return HttpResponse(response.body, status=response.status, headers=dict(response.headers))


def _head(request: Any, path: str) -> Request:
    return Request(
        method=request.method,
        path=f"/{path}",
        root=request.path.removesuffix(path).rstrip("/"),
        headers={name.lower(): value for name, value in request.headers.items()},
        host=request,
        secure=request.is_secure(),
    )


app_name = "outbox_tasks"
urlpatterns = [re_path(r"^(?P<path>[\s\S]*)\Z", show, name="page")]
