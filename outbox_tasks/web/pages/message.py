"""One message: its life, its payload and headers, and the ways to what belongs to it."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.responses import Response

from outbox_tasks.errors import UnknownMessage
from outbox_tasks.operating.audit import deed
from outbox_tasks.operating.messages.acts import is_json
from outbox_tasks.operating.messages.filters import CHANGEABLE
from outbox_tasks.operating.messages.find import ARCHIVED, DEAD, Lookup
from outbox_tasks.operating.messages.life import HISTORY_KEPT, UNTIL, error_of, life, tracebacks
from outbox_tasks.operating.messages.payload import hexadecimal, laid_out
from outbox_tasks.relay.store import Store
from outbox_tasks.web.access import Role
from outbox_tasks.web.overview import look_at
from outbox_tasks.web.render import cut
from outbox_tasks.web.visit import Visit

SHOWN = 12_000
"""Characters of a payload that the page shows. A download has all of it."""

LAID_OUT = 64 * 1024
"""Bytes of a payload that the page reads. If these are all of it, JSON is laid out on several lines: that takes its
time."""

PIECE = 4 * 1024 * 1024
"""Bytes of a download that are in memory at once."""

HEX_LINES = 32

HEADERS = 8_000
"""Characters of the headers that are shown."""

ACTS = 15
"""Acts of people that are shown."""

TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def message(visit: Visit) -> Response:
    """Everything about one message."""
    id = id_of(visit)
    part = LAID_OUT if visit.may(Role.PAYLOAD) else 0
    one = visit.look(
        f"message {id} {part}", lambda: Lookup(visit.store, lambda: look_at(visit).examination).one(id, part)
    )
    names: dict[str, Any] = {"again": None} if one["state"] in ARCHIVED else {}
    return visit.show(
        "message.html",
        one=one,
        life=life(one),
        kept=HISTORY_KEPT,
        error=error_of(one) if visit.may(Role.PAYLOAD) else one["last_error_code"],
        until=UNTIL.get(one["state"]),
        traceback=next(reversed(tracebacks(one)), None),
        acts=[(act, deed(act)) for act in one["audit"][-ACTS:]],
        contents=_contents(visit, one) if visit.may(Role.PAYLOAD) else None,
        tasks=list(_tasks(visit, one)),
        can={action: one["state"] in states for action, states in CHANGEABLE.items()},
        DEAD=DEAD,
        **names,
    )


def payload(visit: Visit) -> Response:
    """The bytes of a payload, as a file."""
    id = id_of(visit)
    one = Lookup(visit.store).stored(id, PIECE)
    ending, size = "json" if is_json(one["content_type"]) else "bin", one["size"]
    more = _rest(visit.store, one) if size > PIECE else ()
    return visit.download(bytes(one["payload"]), f"{id}.{ending}", size, more)


def _rest(store: Store, one: dict[str, Any]) -> Iterator[bytes]:
    """The other pieces of a payload. If somebody edits it meanwhile, the download breaks off."""
    for start in range(PIECE, one["size"], PIECE):
        now = Lookup(store).stored(one["id"], PIECE, start)
        if (now["size"], _edits(now)) != (one["size"], _edits(one)):
            raise UnknownMessage(id=one["id"])
        yield bytes(now["payload"])


def _edits(one: dict[str, Any]) -> int:
    return sum(entry.get("what") == "edited" for entry in one["history"])


def id_of(visit: Visit) -> UUID:
    """The id of the message that the address names. Raises `HTTPException`."""
    try:
        return UUID(visit.arguments["id"])
    except ValueError:
        raise HTTPException(
            404, "The id of a message is a UUID, such as 01a2005d-d753-78be-8d86-fb2c39ca288f."
        ) from None


def _contents(visit: Visit, one: dict[str, Any]) -> dict[str, Any]:
    """What a message brings, for those who may see it."""
    payload = bytes(one["payload"])
    all_of_it = one["size"] == len(payload)
    text = laid_out(payload) if all_of_it else _decoded(payload)
    shown = hexadecimal(payload, HEX_LINES) if text is None else text[:SHOWN]
    more = not all_of_it or (len(payload) > 16 * HEX_LINES if text is None else len(text) > SHOWN)
    headers = _written(one["headers"])
    return {"payload": shown, "is_text": text is not None, "cut": more, "headers": headers, "trace": _trace(visit, one)}


def _decoded(payload: bytes) -> str | None:
    """The beginning of a text, which may end within a character; None: it is not text."""
    try:
        text = getincrementaldecoder("utf-8")().decode(payload)
    except ValueError:
        return None
    return None if "\0" in text else text


def _written(headers: Any) -> str:
    """A writer may have put anything there."""
    try:
        return cut(json.dumps(headers, ensure_ascii=False, indent=1), HEADERS) if headers else ""
    except RecursionError:
        return "…"


def _trace(visit: Visit, one: dict[str, Any]) -> str | None:
    """The page of its trace."""
    parent = one["headers"].get("traceparent") if isinstance(one["headers"], dict) else None
    found = TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    url = visit.settings.web_trace_url
    return url.replace("{trace_id}", found[1]) if url and found else None


def _tasks(visit: Visit, one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The pages of its tasks in Flower. A publish task has the id of its message."""
    flower = visit.settings.web_flower_url
    if flower is None:
        return
    yield "Its sends in Flower", f"{flower.rstrip('/')}/task/{one['id']}"
    task = one["aggregate_id"] if one["aggregate_type"] == "celery.task" else None
    if task and task != str(one["id"]):
        yield "Its task in Flower", f"{flower.rstrip('/')}/task/{quote(task, safe='')}"
