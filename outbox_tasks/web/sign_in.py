"""The people of the setting `web_users`: they sign in with a form, and their session says who they are."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outbox_tasks.settings import Settings
from outbox_tasks.web import render
from outbox_tasks.web.access import Person, Role
from outbox_tasks.web.forms import TOKEN, form_of, give_token

log = logging.getLogger(__name__)

TRIES = 10
"""Wrong passwords for a name from one client within a minute. Then only this client waits, until a minute is over."""

TRIES_OF_ALL = 100
"""The same, of all clients behind one proxy: it may believe what they say of their addresses."""

MINUTE = 60.0

COUNTS = 10_000
"""Counts of wrong passwords that are kept: a flood of names takes no more memory."""

NAME = "name"
"""In the session: who has signed in."""

LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]*")
"""An address on this site."""


class SignIn:
    """Knows people by their passwords.

    Wrong passwords are counted by name and client, so nobody can lock out somebody else, and who has signed in goes on.
    Names that have a password and names that have none are treated alike."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._users = settings, settings.web_users
        self._nobody = secrets.token_urlsafe()
        self._wrong: OrderedDict[bytes, list[float]] = OrderedDict()
        self.routes = [
            Route("/sign-in", self._let_in, methods=["POST"]),
            Route("/sign-in", self._start, methods=["GET"]),
            Route("/sign-out", self._let_out, methods=["POST"]),
        ]

    def person(self, request: Request) -> Person | None:
        """Who has signed in with this browser."""
        name = str(request.session.get(NAME, ""))
        user = self._users.get(name)
        return Person(name, Role[user.role.upper()]) if user else None

    def ask(self, request: Request, status: int, **names: object) -> Response:
        """The form to sign in with. What was asked for is shown after that."""
        give_token(request)
        place = render.here(request) if request.method in ("GET", "HEAD") else None
        usual = {"titles": {}, "again": None, "next": place, "wrong": None, "csrf": request.session[TOKEN]}
        return render.show(request, "sign_in.html", {**usual, **names}, status)

    async def _start(self, request: Request) -> Response:
        return render.go(request, "/")

    async def _let_in(self, request: Request) -> Response:
        form = await form_of(request, self._settings)
        name, password, place = ((form.get(field) or [""])[0] for field in ("name", "password", "next"))
        if not self._is_right(name, password, _counts(name, request)):
            return self.ask(request, 401, next=place, wrong="This name and this password do not belong together.")
        request.session.clear()
        request.session[NAME] = name
        give_token(request)
        return Response(None, 303, {"Location": place if LOCAL.fullmatch(place) else render.url(request, "/")})

    async def _let_out(self, request: Request) -> Response:
        await form_of(request, self._settings)
        request.session.clear()
        return render.go(request, "/")

    def _is_right(self, name: str, password: str, counts: Mapping[bytes, int]) -> bool:
        if wait := self._wait(counts):
            again = {"Retry-After": f"{wait + 1:.0f}"}
            raise HTTPException(429, "Too many wrong passwords for this name from here. Try again in a minute.", again)
        # It takes the same time whether there is such a name or not, and however long the password is.
        user = self._users.get(name)
        expected = user.password if user else self._nobody
        if hmac.compare_digest(_digest(password), _digest(expected)) and user is not None:
            return True
        self._note_wrong(counts, name)
        return False

    def _wait(self, counts: Mapping[bytes, int]) -> float:
        """Seconds until one more password is looked at."""
        now = time.monotonic()
        found = [(self._wrong.get(count, []), most) for count, most in counts.items()]
        return max(max(0.0, wrong[0] + MINUTE - now) if len(wrong) >= most else 0.0 for wrong, most in found)

    def _note_wrong(self, counts: Mapping[bytes, int], name: str) -> None:
        now = time.monotonic()
        for count, most in counts.items():
            recent = [at for at in self._wrong.get(count, []) if now - at < MINUTE]
            self._wrong[count] = [*recent, now][-most:]
            self._wrong.move_to_end(count)
            if len(self._wrong) > COUNTS:
                self._wrong.popitem(last=False)
            if len(recent) == most - 1:
                log.warning("after %d wrong passwords for %r, their client waits for a minute", most, name)


def _counts(name: str, request: Request) -> dict[bytes, int]:
    """What a wrong password counts for, and how many may be wrong."""
    client = request.client.host if request.client else request.scope.get("wsgi_environ", {}).get("REMOTE_ADDR", "")
    forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2]
    near = f"{name}\0{_network(client)}"
    return {_digest(f"{near}\0{_network(forwarded)}"): TRIES, _digest(near): TRIES_OF_ALL}


def _network(address: str) -> str:
    """A client. Who has one address of IPv6 has all of its network."""
    try:
        found = ipaddress.ip_address(address.strip().partition("%")[0])
    except ValueError:
        return ""
    return str(found if found.version == 4 else ipaddress.ip_network((found, 64), strict=False))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
