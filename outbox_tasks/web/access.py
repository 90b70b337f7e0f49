"""Who visits, what they may do, and whether a form came from the page itself."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote

from outbox_tasks.settings.web import WebUser
from outbox_tasks.web.http import Refused, Request

log = logging.getLogger(__name__)

COOKIE = "outbox_csrf"
FIELD = "csrf"
"""The cookie and the field of each form that must be equal: another site can read neither."""

TRIES = 10
"""Wrong passwords for a name within a minute. Then the name is refused for a minute."""

MINUTE = 60.0

OTHERS = 256
"""Counts that the names without a password share. A flood of invented names takes no more memory."""


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
    """The people of the setting `web_users`, who sign in with HTTP Basic."""

    def __init__(self, users: Mapping[str, WebUser]) -> None:
        self._users = users
        self._nobody = secrets.token_urlsafe()
        self._wrong: dict[str | int, list[float]] = {}
        self._lock = threading.Lock()

    def person(self, request: Request) -> Person | None:
        """Who this is; None: nobody whom we know. Raises `Refused` after too many wrong passwords."""
        found = _basic(request.headers.get("authorization", ""))
        if found is None:
            return None
        name, password = found
        user = self._users.get(name)
        count = name if user else zlib.crc32(name.encode()) % OTHERS
        if self._tried_too_often(count):
            wait = [("Retry-After", f"{MINUTE:.0f}")]
            raise Refused(429, "Too many wrong passwords for this name. Try again in a minute.", wait)
        # It takes the same time whether there is such a name or not, and however long the password is.
        expected = user.password if user else self._nobody
        if not hmac.compare_digest(_digest(password), _digest(expected)) or user is None:
            if self._note_wrong(count) == TRIES:
                log.warning("after %d wrong passwords, %r can't sign in for a minute", TRIES, name)
            return None
        return Person(name, Role[user.role.upper()])

    def _tried_too_often(self, count: str | int) -> bool:
        with self._lock:
            wrong = self._wrong.get(count, [])
            return len(wrong) >= TRIES and time.monotonic() - wrong[-1] < MINUTE

    def _note_wrong(self, count: str | int) -> int:
        """Returns how many wrong passwords there were lately."""
        now = time.monotonic()
        with self._lock:
            recent = [at for at in self._wrong.get(count, []) if now - at < MINUTE]
            self._wrong[count] = [*recent, now][-TRIES:]
            return len(self._wrong[count])


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
