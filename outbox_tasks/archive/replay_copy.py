"""What a replay changes of a message: the rest of its copy is the same."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from outbox_tasks.model import EVENT_ID, TASK_HEADER, sibling
from outbox_tasks.operating.messages.find import event_of
from outbox_tasks.wire.celery_message import TaskMessage
from outbox_tasks.wire.cloudevents import UNEXPRESSED

REPLAYED, REPLAYED_ID = "replayed", "replayed-id"
"""Headers of a copy: when its replay began, and the id of the message that it copies."""


class Copier:
    """Makes the copies of one replay. `to`: their destination; None: that of each original. `entry`: of the audit."""

    def __init__(self, to: str | None, new_ids: bool, entry: int, began: datetime) -> None:
        self._to = to
        self._new = f"replay {entry}" if new_ids else None
        self._began = began.isoformat(timespec="seconds")

    def copy(self, original: Any) -> dict[str, Any]:
        """A row of archive/replay.sql, of one of find/originals.sql. The same original always has the same copy."""
        id, destination, aggregate_id = original.id, self._to or original.destination, original.aggregate_id
        headers = json.loads(original.headers)
        if isinstance(headers, dict):  # else the relay says what is wrong with it
            id = self._identified(id, destination, original.destination, headers)
            mark = {REPLAYED: self._began, REPLAYED_ID: headers.get(REPLAYED_ID, str(original.id))}
            headers |= mark
            if isinstance(envelope := headers.get(TASK_HEADER), str) and (task := self._task(envelope, mark, str(id))):
                headers[TASK_HEADER] = task.dumps()
                aggregate_id = task.properties.get("correlation_id")
        return {
            "original": original.seq, "id": str(id), "destination": destination, "aggregate_id": aggregate_id,
            "headers": headers,
        }  # fmt: skip

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
