"""A message as a test sees it, and the Celery task that is stored in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from kombu.compression import decompress
from kombu.serialization import loads

from outbox_tasks.model import LeasedMessage
from outbox_tasks.testing.errors import NotATask, NotJson
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage

SHORT = 200
"""Characters of a payload that are shown in a list."""


@dataclass(frozen=True)
class StoredTask:
    """A Celery task as its worker would get it."""

    name: str
    id: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    headers: Mapping[str, Any]
    """All that Celery sends with it, such as `eta`, `expires`, `group` and `root_id`, and the headers of the call."""

    def __str__(self) -> str:
        arguments = [repr(value) for value in self.args]
        arguments += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{self.name}({', '.join(arguments)})"


@dataclass(frozen=True)
class SeenMessage:
    """A message that was published or delivered. `payload` is exactly what was stored, or sent."""

    id: UUID
    """What `publish` returned; the same in every delivery."""
    event_type: str
    destination: str
    key: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    aggregate_type: str | None
    aggregate_id: str | None
    created_at: datetime
    state: str
    """scheduled, pending, leased, handed over, running, retrying, dead, sent or discarded."""
    attempts: int
    due: datetime | None = None
    """Not to be sent before, by the database's clock. None: it is not to be sent any more."""
    error_code: str | None = None
    """Why it failed last, or why it may be delivered twice."""
    error: str | None = None

    @classmethod
    def delivered(cls, message: LeasedMessage) -> SeenMessage:
        """A message as a destination got it."""
        return cls(
            UUID(message.id), message.event_type, message.destination, message.key, message.payload,
            message.content_type, message.headers, message.aggregate_type, message.aggregate_id, message.created_at,
            "sent", message.attempts,
        )  # fmt: skip

    @cached_property
    def json(self) -> Any:
        """The payload, decoded. Raises `NotJson`."""
        try:
            return json.loads(self.payload)
        except ValueError as error:
            raise NotJson(event_type=self.event_type, content_type=self.content_type, reason=error) from error

    @property
    def text(self) -> str:
        """The payload as text. Bytes that are not UTF-8 are replaced."""
        return self.payload.decode(errors="replace")

    @cached_property
    def task(self) -> StoredTask | None:
        """The Celery task that is stored in it, if one is. Raises `NotATask`."""
        headers: object = self.headers  # rows can be written by anybody
        if not isinstance(headers, Mapping) or ENVELOPE not in headers:
            return None
        try:
            return _task(self.payload, TaskMessage.loads(headers[ENVELOPE]))
        except Exception as error:  # each serializer and compression has errors of its own
            raise NotATask(header=ENVELOPE, event_type=self.event_type, reason=repr(error)) from error

    def __str__(self) -> str:
        try:
            task = self.task
        except NotATask:
            task = None
        if task is not None:
            what = f"task {_shortened(str(task))} → {self.destination}, queue {task.queue!r}"
        else:
            key = "" if self.key is None else f"  key={self.key!r}"
            what = f"{self.event_type} → {self.destination}{key}  {_shortened(self.text)}"
        if self.state == "pending":
            return what
        because = f", {self.error_code}" if self.error_code else ""
        return f"{what}  ({self.state}{because})"


def _task(body: bytes, envelope: TaskMessage) -> StoredTask:
    headers = envelope.headers
    if headers.get("compression"):
        body = decompress(body, headers["compression"])
    # What the application itself has just written may be read, pickle too.
    decoded: Any = loads(body, envelope.content_type, envelope.content_encoding, accept={envelope.content_type})
    if "task" in headers:
        fields, (args, kwargs, _) = headers, decoded
    else:  # Celery's first message protocol
        fields, args, kwargs = decoded, decoded["args"], decoded["kwargs"]
    queues = [described["queue"]["name"] for described in envelope.declare if "queue" in described]
    queue = queues[0] if queues else envelope.routing_key
    return StoredTask(fields["task"], fields["id"], list(args), dict(kwargs), queue, headers)


def _shortened(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[:SHORT]}… ({len(text)} characters)"
