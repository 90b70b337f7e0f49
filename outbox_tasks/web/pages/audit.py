"""The audit: who did what, and why; and the payloads that edits replaced."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.operating.audit import deed, facts_of
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.web.visit import Visit

SIZE = 50
"""Acts on a page."""

LARGEST = 2**63


def audit(visit: Visit) -> Response:
    """The acts of people, the last one first."""
    before = visit.ask("before")
    if before is not None and (place := _number(before)) is None:
        raise HTTPException(400, "A page of the audit begins before the number of an act.")
    place = None if before is None else _number(before)
    acts = visit.look(f"audit before {place}", lambda: Lookup(visit.store).acts(SIZE + 1, place))
    return visit.show(
        "audit.html",
        acts=[{**act, "deed": deed(act), "said": facts_of(act), "path": _path(act)} for act in acts[:SIZE]],
        next=visit.url("/audit", before=acts[SIZE - 1]["seq"]) if len(acts) > SIZE else None,
        first=visit.url("/audit") if before else None,
    )


def former_payload(visit: Visit) -> Response:
    """The payload that an edit replaced, as a download."""
    entry = _number(visit.arguments["entry"])
    former = None if entry is None else Lookup(visit.store).former_payload(entry)
    if former is None:
        raise HTTPException(404, "This act of the audit is no edit.")
    return visit.download(former, f"former-payload-{entry}")


def _number(text: str) -> int | None:
    """The number of an act."""
    return int(text) if re.fullmatch("[0-9]{1,19}", text) and int(text) < LARGEST else None


def _path(act: dict[str, Any]) -> str | None:
    """The page of the destination or the message that somebody acted on."""
    target = act["target"]
    if act["action"] in ("pause", "resume"):
        return f"/destinations/{target}"
    try:
        return f"/messages/{UUID(target)}" if target else None
    except ValueError:
        return None
