"""A request and a response, as the pages see them: whatever server stands in front."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

LONGEST_QUERY = 8 * 1024
"""Bytes of the part of an address behind its question mark."""

LONGEST_FORM = 2 * 1024 * 1024
"""Bytes of a form, unless it holds a payload."""

MOST_FIELDS = 1000
"""Fields of a query or a form."""

FORM = "application/x-www-form-urlencoded"

Fields = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Request:
    """What a person's browser asks."""

    method: str
    """GET, HEAD or POST."""
    path: str
    """Below the place where the page is mounted. It is decoded, and begins with a slash."""
    root: str = ""
    """Where the page is mounted: empty, or as in /outbox."""
    query: Fields = field(default_factory=dict)
    form: Fields = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case names."""
    host: Any = None
    """What the server gives: the ASGI scope, the WSGI environ, or Django's request. It is for `who`."""
    secure: bool = False
    """Whether it came over HTTPS."""
    client: str = ""
    """The address that it came from. It may be a proxy's."""


@dataclass(frozen=True, slots=True)
class Response:
    """What the browser gets."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes
    more: Iterable[bytes] = ()
    """The rest of a long body, which is not in memory. The headers say how long all of it is."""


class Refused(Exception):
    """An answer other than the page that was asked for. It never leaves the page."""

    def __init__(self, status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers


class NotFound(Refused):
    """What was asked for is not there."""

    def __init__(self, text: str) -> None:
        super().__init__(404, text)


def query_of(text: bytes) -> Fields:
    """The fields behind the question mark. Raises `Refused`."""
    if len(text) > LONGEST_QUERY:
        raise Refused(414, f"This address is too long: it has more than {LONGEST_QUERY:,} bytes.")
    return form_of(text)


def form_of(text: bytes) -> Fields:
    """The fields of a form. Raises `Refused`."""
    try:
        found = parse_qs(
            text.decode("ascii"), keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=MOST_FIELDS
        )
    except UnicodeError:
        raise Refused(400, "The fields of this request are not UTF-8.") from None
    except ValueError:
        raise Refused(400, f"This request has more than {MOST_FIELDS:,} fields.") from None
    if b"%00" in text or b"\0" in text:
        raise Refused(400, "This request has a NUL character, and no text in the database has one.")
    return found


def form_size(headers: Mapping[str, str], longest: int) -> int:
    """How many bytes the form of a POST has. Raises `Refused`."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Refused(415, f"A form must be sent as {FORM}.")
    said = headers.get("content-length", "")
    if not (said.isascii() and said.isdigit() and len(said) < 12):
        raise Refused(411, "A form must say how long it is.")
    if int(said) > longest:
        raise Refused(413, f"This form is too long: it may have {longest:,} bytes.")
    return int(said)


def whole(body: bytes, size: int) -> bytes:
    """The form, if all of it has arrived. Raises `Refused`."""
    if len(body) != size:
        raise Refused(400, "Only a part of this form has arrived. Nothing was done.")
    return body
