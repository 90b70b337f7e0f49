"""What a replay makes of one message: its copy."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox_tasks.model import EVENT_ID, TASK_HEADER, sibling
from outbox_tasks.operating.archive.files import COLUMNS, EPOCH, MICROSECOND, Row
from outbox_tasks.operating.messages.find import event_of
from outbox_tasks.wire.celery_message import TaskMessage
from outbox_tasks.wire.cloudevents import UNEXPRESSED

REPLAYED, REPLAYED_ID = "replayed", "replayed-id"
"""Headers of a copy: when its replay began, and the id of the message that it copies."""

SAME = ("event_type", "aggregate_type", "aggregate_id", "key", "content_type")


class Copier:
    """Makes the copies of one replay. `to`: their destination; None: that of each original. `entry`: of the audit."""

    def __init__(self, to: str | None, new_ids: bool, entry: int, began: datetime) -> None:
        self._to = to
        self._new = f"replay {entry}" if new_ids else None
        self._began = began.isoformat(timespec="seconds")

    def copy(self, original: Row) -> dict[str, Any]:
        """A row of act/replay.sql. The same original always has the same copy."""
        old = dict(zip(COLUMNS, original, strict=True))
        id, destination = UUID(old["id"]), self._to or old["destination"]
        copied = {name: old[name] for name in SAME}
        headers = json.loads(old["headers"])
        if isinstance(headers, dict):  # else the relay says what is wrong with it
            id = self._identified(id, destination, old["destination"], headers)
            mark = {REPLAYED: self._began, REPLAYED_ID: headers.get(REPLAYED_ID, old["id"])}
            headers |= mark
            if isinstance(envelope := headers.get(TASK_HEADER), str):
                task = self._task(envelope, mark, str(id))
                headers[TASK_HEADER] = task.dumps() if task else envelope
                copied["aggregate_id"] = task.properties.get("correlation_id") if task else old["aggregate_id"]
        return {
            **copied,
            "id": str(id),
            "of": old["id"],
            "destination": destination,
            "headers": headers,
            "data": base64.b64encode(old["payload"]).decode(),
            "created_at": (EPOCH + old["created_at"] * MICROSECOND).isoformat(),
        }

    def _identified(self, id: UUID, destination: str, former: str, headers: dict[str, Any]) -> UUID:
        """The id of the copy. To another destination, it is the one that the event would have had there."""
        event = event_of(headers)
        if self._new is not None:
            if event is not None:
                headers[EVENT_ID] = str(sibling(event, self._new))
            return sibling(id, f"{destination} {self._new}")
        if destination == former:
            return id
        headers[EVENT_ID] = str(event or id)
        return sibling(event or id, destination)

    def _task(self, envelope: str, mark: dict[str, Any], id: str) -> TaskMessage | None:
        """A stored task with the marks in its own headers: workers see only these. With new ids it is another task."""
        try:
            task = TaskMessage.loads(envelope)
        except UNEXPRESSED:
            return None  # the relay says what is wrong with it
        headers, properties = {**task.headers, **mark}, dict(task.properties)
        former = headers.get("id")
        if self._new is not None and former is not None:  # the first version of Celery's messages has it in the body
            headers |= {name: id for name in ("id", "root_id") if headers.get(name) == former}
            properties["correlation_id"] = id
        return replace(task, headers=headers, properties=properties)
