"""The audit: who did what, and why."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.operating.audit import deed, facts_of
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.web.visit import ROWS_SHOWN, Visit


def audit(visit: Visit) -> Response:
    """The acts of people, the last one first."""
    before = visit.query_value("before")
    number = None if before is None else number_of(before)
    if before is not None and number is None:
        raise HTTPException(400, "A page of the audit begins before the number of an act.")
    acts = visit.look(f"audit before {number}", lambda: Lookup(visit.store).acts(ROWS_SHOWN + 1, number))
    shown = acts[:ROWS_SHOWN]
    return visit.show(
        "audit.html",
        acts=[{**act, "deed": deed(act), "facts_text": facts_of(act), "path": path_of(act)} for act in shown],
        next=visit.url("/audit", before=shown[-1]["seq"]) if len(acts) > ROWS_SHOWN else None,
        first=visit.url("/audit") if before else None,
    )


def number_of(text: str) -> int | None:
    """The number of an act, if the text is one that PostgreSQL can hold."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def path_of(act: dict[str, Any]) -> str | None:
    """The page of the destination or the message that somebody acted on."""
    target = act["target"]
    if act["action"] in ("pause", "resume"):
        return f"/destinations/{target}"
    try:
        return f"/messages/{UUID(target)}" if target else None
    except ValueError:
        return None
