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

EDITABLE_BYTES = 512 * 1024

CONTENT_TYPE = re.compile("[!-~][ -~]{0,199}")


def edit(visit: Visit) -> Response:
    """The payload in a form, if it is text."""
    return _form(visit, _dead_letter(visit))


def save(visit: Visit) -> Response:
    """Keep what a person wrote, and show the message; or show the form again, with what is wrong."""
    message = _dead_letter(visit)
    draft = {name: visit.form.get(name, [""])[0] for name in ("payload", "content_type", "former")}
    draft["content_type"] = draft["content_type"].strip()
    try:
        why, payload = visit.why(), _written(message, **draft)
        operator = Operator(visit.store, visit.person.name, why)
        operator.edit(message["id"], message["payload"], payload, draft["content_type"])
    except (ActRefused, PayloadTooLarge) as error:
        return _form(visit, message, draft, str(error), 409 if draft["former"] != _digest(message) else 400)
    except HTTPException as error:
        return _form(visit, message, draft, error.detail, error.status_code)
    visit.forget(f"message {message['id']} ")
    return visit.go(f"/messages/{message['id']}")


def _written(message: Mapping[str, Any], payload: str, content_type: str, former: str) -> bytes:
    """The new payload. `former`: the digest of the payload that the person saw. Raises `ActRefused`."""
    if former != _digest(message):
        raise ActRefused(reason="somebody else has changed its payload meanwhile; look at it again")
    if not CONTENT_TYPE.fullmatch(content_type):
        raise ActRefused(reason="a content type is a text such as application/json")
    if _editable(message["payload"]) is None:
        raise ActRefused(reason="it can't be edited in a browser")
    changed = mended(message["payload"], payload.replace("\r\n", "\n"))  # a browser ends lines with two characters
    if (changed, content_type) == (message["payload"], message["content_type"]):
        raise ActRefused(reason="nothing was changed")
    return changed


def _form(
    visit: Visit, message: Mapping[str, Any], draft: Mapping[str, str] | None = None, wrong: str = "", status: int = 200
) -> Response:
    text = _editable(message["payload"])
    shown = draft or {"payload": text or "", "content_type": message["content_type"], "former": _digest(message)}
    return visit.show(
        "edit.html",
        status=status,
        again=None,
        message=message,
        draft=shown,
        editable=text is not None,
        has_hidden=printable(shown["payload"]) != shown["payload"],
        wrong=wrong,
        command=shell_line("edit", str(message["id"]), "--payload", "FILE", "--why", "…"),
    )


def _editable(payload: bytes) -> str | None:
    """A payload as a browser can show it. None: a browser would change more than a person does. It makes all ends of
    lines alike, for example."""
    text = laid_out(payload) if len(payload) <= EDITABLE_BYTES else None
    return None if text is None or "\r" in text else text


def _digest(message: Mapping[str, Any]) -> str:
    return sha256(message["payload"]).hexdigest()


def _dead_letter(visit: Visit) -> dict[str, Any]:
    return Lookup(visit.store).dead_letter(id_of(visit), EDITABLE_BYTES + 1)
