"""The people of the setting `web_users`: they sign in with a form, and their session says who they are."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outbox_tasks.settings import Settings
from outbox_tasks.web import render
from outbox_tasks.web.access import Person, Role
from outbox_tasks.web.forms import form_of

log = logging.getLogger(__name__)

WRONG_OF_A_CLIENT, WRONG_OF_A_PROXY = 10, 100
"""Wrong passwords for one name in a minute. After that, the client waits until the minute is over, and so do all
clients of a proxy: a proxy may believe what clients say of their addresses."""

MINUTE_SECONDS = 60.0

SESSION_NAME = "name"
"""The name in the session of a person who has signed in."""

LOCAL_ADDRESS = re.compile(r"/(?![/\\])[!-\[\]-~]*")


class SignIn:
    """Knows people by their passwords.

    Wrong passwords are counted by name and client: nobody can lock out somebody else, and a person who has signed in
    stays signed in. A name that has no password is answered like a name that has one.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._users = settings, settings.web_users
        self._password_of_nobody = secrets.token_urlsafe()
        self._minute, self._wrong = 0.0, Counter[bytes]()
        """Of each name and client: how many passwords were wrong in this minute."""
        self.routes = [
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-in", self._to_start, methods=["GET"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]

    def person(self, request: Request) -> Person | None:
        """The person who has signed in with this browser."""
        name = str(request.session.get(SESSION_NAME, ""))
        user = self._users.get(name)
        return Person(name, Role[user.role.upper()]) if user else None

    def ask(self, request: Request, **names: object) -> Response:
        """The form to sign in with. After it comes the page that was asked for."""
        place = render.here(request) if request.method in ("GET", "HEAD") else None
        usual: dict[str, object] = {"titles": {}, "again": None, "next": place, "wrong": None}
        return render.show(request, "sign_in.html", {**usual, **names}, 401)

    async def _to_start(self, request: Request) -> Response:
        return render.go(request, "/")

    async def _sign_in(self, request: Request) -> Response:
        form = await form_of(request)
        name, password, place = ((form.get(field) or [""])[0] for field in ("name", "password", "next"))
        if not self._is_right(name, password, _counters(name, request)):
            return self.ask(request, next=place, wrong="This name and this password do not belong together.")
        request.session[SESSION_NAME] = name
        return Response(None, 303, {"Location": place if LOCAL_ADDRESS.fullmatch(place) else render.url(request, "/")})

    async def _sign_out(self, request: Request) -> Response:
        await form_of(request)
        request.session.clear()
        return render.go(request, "/")

    def _is_right(self, name: str, password: str, counters: Mapping[bytes, int]) -> bool:
        minute, second = divmod(time.monotonic(), MINUTE_SECONDS)
        if minute != self._minute:
            self._minute, self._wrong = minute, Counter()
        if any(self._wrong[counter] >= limit for counter, limit in counters.items()):
            text = "Too many wrong passwords for this name from here. Try again in a minute."
            raise HTTPException(429, text, {"Retry-After": f"{MINUTE_SECONDS - second + 1:.0f}"})
        # This takes the same time whether there is such a name or not, and however long the password is.
        user = self._users.get(name)
        expected = user.password if user else self._password_of_nobody
        if hmac.compare_digest(_digest(password), _digest(expected)) and user is not None:
            return True
        for counter, limit in counters.items():
            self._wrong[counter] += 1
            if self._wrong[counter] == limit:
                log.warning("after %d wrong passwords for %r, their client waits for a minute", limit, name)
        return False


def _counters(name: str, request: Request) -> dict[bytes, int]:
    """What a wrong password counts for, and how many may be wrong."""
    client = request.client.host if request.client else request.scope.get("wsgi_environ", {}).get("REMOTE_ADDR", "")
    forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2]
    proxy = f"{name}\0{_network(client)}"
    return {_digest(f"{proxy}\0{_network(forwarded)}"): WRONG_OF_A_CLIENT, _digest(proxy): WRONG_OF_A_PROXY}


def _network(address: str) -> str:
    """A client's address; for IPv6 its network, because a client has all addresses of that."""
    try:
        parsed = ipaddress.ip_address(address.strip())
    except ValueError:
        return ""
    return str(parsed if parsed.version == 4 else ipaddress.ip_network((parsed, 64), strict=False))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
