"""The forms that people send: how long they may be, and whether they came from the page itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request

CONTENT_TYPE = "application/x-www-form-urlencoded"

FORM_BYTES = 64 * 1024
"""The longest form."""

Fields = Mapping[str, list[str]]


def fields_of(items: Iterable[tuple[str, object]]) -> Fields:
    """The values by their names. Raises `HTTPException`."""
    fields: dict[str, list[str]] = {}
    for name, value in items:
        fields.setdefault(name, []).append(str(value))
        if "\0" in name or "\0" in str(value):
            raise HTTPException(400, "This request has a NUL character, and no text in the database has one.")
    return fields


async def form_of(request: Request) -> Fields:
    """The fields of a form. Raises `HTTPException` unless the browser says that the page itself has shown it: another
    site could have sent it in a person's name."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != CONTENT_TYPE:
        raise HTTPException(415, f"A form must be sent as {CONTENT_TYPE}.")
    size = request.headers.get("content-length", "")
    if not (size.isascii() and size.isdigit()):
        raise HTTPException(411, "A form must say how long it is.")
    if len(size) > 12 or int(size) > FORM_BYTES:
        raise HTTPException(413, f"This form is too long: it may have {FORM_BYTES:,} bytes.")
    _check_origin(request)
    return fields_of((await request.form()).multi_items())


def _check_origin(request: Request) -> None:
    """By Sec-Fetch-Site, which browsers send to HTTPS and localhost; or else by Origin, which comes with each form."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    if site is None:
        is_own = origin.partition("://")[2] == request.headers.get("host", "")
    else:
        is_own = site in ("same-origin", "none")
    if not is_own:
        raise HTTPException(403, "This form was sent by another site, so nothing was done.")
