"""One message: its life, its payload and headers, and the ways to what belongs to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.operating.messages.acts import is_json
from outbox_tasks.operating.messages.filters import CHANGEABLE
from outbox_tasks.operating.messages.find import ARCHIVED, DEAD, Lookup
from outbox_tasks.operating.messages.life import HISTORY_KEPT, UNTIL, error_of, life, tracebacks
from outbox_tasks.operating.messages.payload import laid_out
from outbox_tasks.text import shell_line
from outbox_tasks.web.access import Role
from outbox_tasks.web.overview import status_of
from outbox_tasks.web.render import cut
from outbox_tasks.web.visit import Visit

PAYLOAD_BYTES = 64 * 1024
"""The page shows no payload that is larger."""

SHOWN_CHARACTERS = 12_000
"""How much of a payload or of headers the page shows. A download has all of the payload."""

TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def message(visit: Visit) -> Response:
    id, may_read = id_of(visit), visit.may(Role.PAYLOAD)
    size = PAYLOAD_BYTES if may_read else 0
    lookup = Lookup(visit.store, lambda: status_of(visit).examination)
    message = visit.look(f"message {id} {size}", lambda: lookup.one(id, size))
    names: dict[str, Any] = {"again": None} if message["state"] in ARCHIVED else {}
    return visit.show(
        "message.html",
        message=message,
        life=life(message),
        events_kept=HISTORY_KEPT,
        error=error_of(message) if may_read else message["last_error_code"],
        until=UNTIL.get(message["state"]),
        traceback=next(reversed(tracebacks(message)), None),
        contents=_contents(visit, message) if may_read else None,
        tasks=list(_tasks(visit, message)),
        can={action: message["state"] in states for action, states in CHANGEABLE.items()},
        DEAD=DEAD,
        command=shell_line("edit", str(id), "--payload", "FILE", "--why", "…"),
        **names,
    )


def payload(visit: Visit) -> Response:
    """The bytes of a payload, as a file: no browser shows them as a page."""
    id = id_of(visit)
    stored = Lookup(visit.store).stored(id)
    name = f"{id}.{'json' if is_json(stored['content_type']) else 'bin'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(bytes(stored["payload"]), 200, headers, "application/octet-stream")


def id_of(visit: Visit) -> UUID:
    """The id of the message that the address names. Raises `HTTPException`."""
    try:
        return UUID(visit.arguments["id"])
    except ValueError:
        example = "01a2005d-d753-78be-8d86-fb2c39ca288f"
        raise HTTPException(404, f"The id of a message is a UUID, such as {example}.") from None


def _contents(visit: Visit, message: dict[str, Any]) -> dict[str, Any]:
    """Payload, headers and trace, for those who may see them."""
    payload = bytes(message["payload"])
    is_too_large = message["size"] > len(payload)
    text = None if is_too_large else laid_out(payload)
    return {
        "payload": text and text[:SHOWN_CHARACTERS],
        "is_cut": text is not None and len(text) > SHOWN_CHARACTERS,
        "is_too_large": is_too_large,
        "headers": _headers(message["headers"]),
        "trace": _trace(visit, message["headers"]),
    }


def _headers(headers: Any) -> str:
    """Headers as text. A writer may have put anything there."""
    return cut(json.dumps(headers, ensure_ascii=False, indent=1), SHOWN_CHARACTERS) if headers else ""


def _trace(visit: Visit, headers: Any) -> str | None:
    parent = headers.get("traceparent") if isinstance(headers, dict) else None
    match = TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    url = visit.settings.web_trace_url
    return url.replace("{trace_id}", match[1]) if url and match else None


def _tasks(visit: Visit, message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The pages of its tasks in Flower. A publish task has the id of its message."""
    flower = visit.settings.web_flower_url
    if flower is None:
        return
    yield "Its sends in Flower", f"{flower.rstrip('/')}/task/{message['id']}"
    task = message["aggregate_id"] if message["aggregate_type"] == "celery.task" else None
    if task and task != str(message["id"]):
        yield "Its task in Flower", f"{flower.rstrip('/')}/task/{quote(task, safe='')}"
