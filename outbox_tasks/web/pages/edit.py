"""Mends the payload of a dead letter. What nobody touched keeps every byte."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.errors import ActRefused, PayloadTooLarge
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.operating.messages.payload import laid_out, mended
from outbox_tasks.text import printable, shell_line
from outbox_tasks.web.pages.message import id_of
from outbox_tasks.web.visit import Visit

LONGEST = 512 * 1024
"""Bytes of a payload that can be edited in a browser."""

CONTENT_TYPE = re.compile("[!-~][ -~]{0,199}")


def edit(visit: Visit) -> Response:
    """The payload in a form, if it is text."""
    return _form(visit, _dead(visit))


def save(visit: Visit) -> Response:
    """Keep what a person wrote, and show the message; or the form again, with what is wrong."""
    one = _dead(visit)
    draft = {name: visit.form.get(name, [""])[0] for name in ("payload", "content_type", "former")}
    draft["content_type"] = draft["content_type"].strip()
    try:
        why, payload = visit.why(), _written(one, **draft)
        Operator(visit.store, visit.person.name, why).edit(one["id"], one["payload"], payload, draft["content_type"])
    except (ActRefused, PayloadTooLarge) as error:
        return _form(visit, one, draft, str(error), 409 if draft["former"] != _digest(one) else 400)
    except HTTPException as error:
        return _form(visit, one, draft, error.detail, error.status_code)
    visit.looks.forget(f"message {one['id']} ")
    return visit.go(f"/messages/{one['id']}")


def _written(one: Mapping[str, Any], payload: str, content_type: str, former: str) -> bytes:
    """The new payload. `former`: the digest of the payload that the person saw. Raises `ActRefused`."""
    if former != _digest(one):
        raise ActRefused(reason="somebody else has changed its payload meanwhile; look at it again")
    text, ends = _editable(one["payload"])
    changed = None if text is None else mended(one["payload"], _plain(payload).replace("\n", ends))
    wrong = {
        "a content type is a text such as application/json": not CONTENT_TYPE.fullmatch(content_type),
        "it can't be edited in a browser": changed is None,
        "nothing was changed": (changed, content_type) == (one["payload"], one["content_type"]),
    }
    for reason in (reason for reason, holds in wrong.items() if holds):
        raise ActRefused(reason=reason)
    return bytes(changed or b"")


def _form(
    visit: Visit, one: Mapping[str, Any], draft: Mapping[str, str] | None = None, wrong: str = "", status: int = 200
) -> Response:
    text, _ = _editable(one["payload"])
    shown = draft or {"payload": text or "", "content_type": one["content_type"], "former": _digest(one)}
    return visit.show(
        "edit.html",
        status=status,
        again=None,
        one=one,
        draft=shown,
        editable=text is not None,
        hidden=printable(shown["payload"]) != shown["payload"],
        wrong=wrong,
        command=shell_line("edit", str(one["id"]), "--payload", "FILE", "--why", "…"),
    )


def _editable(payload: bytes) -> tuple[str | None, str]:
    """A payload as a browser can show it, and how its lines end. None: a browser would change more than a person does.

    A browser makes all ends of lines alike, so they must be alike from the beginning.
    """
    text = laid_out(payload) if len(payload) <= LONGEST else None
    if text is None:
        return None, ""
    ends = "\r\n" if "\r\n" in text else "\n"
    return (text if ends.join(_plain(text).split("\n")) == text else None), ends


def _plain(text: str) -> str:
    """The text with line feeds alone at the ends of its lines: a browser sends two characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _digest(one: Mapping[str, Any]) -> str:
    return sha256(one["payload"]).hexdigest()


def _dead(visit: Visit) -> dict[str, Any]:
    return Lookup(visit.store).dead_letter(id_of(visit), LONGEST + 1)
