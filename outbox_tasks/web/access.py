"""Who visits, what they may do, and whether a form came from the page itself."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar
from urllib.parse import quote

from outbox_tasks.settings.web import WebUser
from outbox_tasks.web.http import Refused, Request

T = TypeVar("T")

log = logging.getLogger(__name__)

COOKIE = "outbox_csrf"
FIELD = "csrf"
"""The cookie and the field of each form that must be equal: another site can read neither."""

TRIES = 10
"""Wrong passwords for a name from one client within a minute. Then only this client waits, until a minute is over."""

TRIES_OF_ALL = 100
"""The same, of all clients behind one proxy: it may believe what they say of their addresses."""

MINUTE = 60.0

COUNTS, SESSIONS = 10_000, 1_000
"""Counts of wrong passwords that are kept, and browsers that had the right one: a flood takes no more memory."""


class Role(IntEnum):
    """What a person may do. Each role includes those before it."""

    LOOK = 1
    """See everything but the contents of messages."""
    PAYLOAD = 2
    """See payloads and headers too."""
    ACT = 3
    """Redrive, discard, cancel, edit, pause and resume."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who visits the page. The name is what the audit says."""

    name: str
    role: Role


class Passwords:
    """The people of the setting `web_users`, who sign in with HTTP Basic.

    Wrong passwords are counted by name and client, so nobody can lock out somebody else. Behind a proxy, clients may
    share an address: a browser that has had the right password is counted by its cookie alone. Names that have a
    password and names that have none are treated alike."""

    def __init__(self, users: Mapping[str, WebUser]) -> None:
        self._users = users
        self._nobody = secrets.token_urlsafe()
        self._wrong: OrderedDict[bytes, list[float]] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def person(self, request: Request) -> Person | None:
        """Who this is; None: nobody whom we know. Raises `Refused` after too many wrong passwords."""
        found = _basic(request.headers.get("authorization", ""))
        if found is None:
            return None
        name, password = found
        token = token_of(request)
        session = None if token is None else _digest(f"{name}\0{token}")
        counts = self._counts(name, request, session)
        if wait := self._wait(counts):
            again = [("Retry-After", f"{wait + 1:.0f}")]
            raise Refused(429, "Too many wrong passwords for this name from here. Try again in a minute.", again)
        # It takes the same time whether there is such a name or not, and however long the password is.
        user = self._users.get(name)
        expected = user.password if user else self._nobody
        if not hmac.compare_digest(_digest(password), _digest(expected)) or user is None:
            self._note_wrong(counts, name)
            return None
        if session is not None:
            with self._lock:
                _keep(self._known, session, None, SESSIONS)
        return Person(name, Role[user.role.upper()])

    def _counts(self, name: str, request: Request, session: bytes | None) -> dict[bytes, int]:
        """What a wrong password counts for, and how many may be wrong."""
        with self._lock:
            if session is not None and session in self._known:
                return {session: TRIES}
        forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2]
        ours = f"{name}\0{_network(request.client)}"
        return {_digest(f"{ours}\0{_network(forwarded)}"): TRIES, _digest(ours): TRIES_OF_ALL}

    def _wait(self, counts: Mapping[bytes, int]) -> float:
        """Seconds until one more password is looked at."""
        now = time.monotonic()
        with self._lock:
            found = [(self._wrong.get(count, []), most) for count, most in counts.items()]
        return max(max(0.0, wrong[0] + MINUTE - now) if len(wrong) >= most else 0.0 for wrong, most in found)

    def _note_wrong(self, counts: Mapping[bytes, int], name: str) -> None:
        now = time.monotonic()
        with self._lock:
            for count, most in counts.items():
                recent = [at for at in self._wrong.get(count, []) if now - at < MINUTE]
                _keep(self._wrong, count, [*recent, now][-most:], COUNTS)
                if len(recent) == most - 1:
                    log.warning("after %d wrong passwords for %r, their client waits for a minute", most, name)


def _keep(kept: OrderedDict[bytes, T], key: bytes, value: T, most: int) -> None:
    """Keep the last ones that were used."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _network(address: str) -> str:
    """A client. Who has one address of IPv6 has all of its network."""
    try:
        found = ipaddress.ip_address(address.strip().partition("%")[0])
    except ValueError:
        return ""
    return str(found if found.version == 4 else ipaddress.ip_network((found, 64), strict=False))


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


def _basic(header: str) -> tuple[str, str] | None:
    """The name and the password of an Authorization header."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def token_of(request: Request) -> str | None:
    """The token in the person's cookie."""
    for one in request.headers.get("cookie", "").split(";"):
        name, _, value = one.strip().partition("=")
        if name == COOKIE and 32 <= len(value) <= 100:
            return value
    return None


def cookie(token: str, request: Request) -> str:
    """The Set-Cookie header of a token. A proxy in front may speak HTTPS for us."""
    encrypted = request.secure or request.headers.get("x-forwarded-proto", "").lower() == "https"
    path = quote(request.root) or "/"
    return f"{COOKIE}={token}; Path={path}; HttpOnly; SameSite=Strict{'; Secure' if encrypted else ''}"


def check_origin(request: Request) -> None:
    """Raises `Refused` unless the form that was sent is ours: another site could send one in a person's name."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        ours = site in ("same-origin", "none")
    else:
        ours = origin is None or origin.lower().partition("://")[2] == request.headers.get("host", "").lower()
    if not ours:
        raise Refused(403, "This form was sent by another site, so nothing was done.")
    token, said = token_of(request), (request.form.get(FIELD) or [""])[0]
    if token is None or not hmac.compare_digest(token.encode(), said.encode()):
        raise Refused(403, "This form is old, or cookies are switched off. Nothing was done. Load the page again.")
