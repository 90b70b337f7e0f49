"""A message as a test sees it, and the Celery task that is stored in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from kombu.message import Message as CeleryMessage

from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage


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
        arguments = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.name}({', '.join(arguments)})"


@dataclass(frozen=True)
class SeenMessage:
    """A message that was published. `payload` is exactly what was stored."""

    id: UUID
    """What `publish` returned; the same in every delivery."""
    event_type: str
    destination: str
    key: str | None
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    state: str
    """scheduled, pending, leased, handed over, running, retrying, dead, sent or discarded."""
    attempts: int
    created_at: datetime
    due: datetime | None
    """Not to be sent before, by the database's clock. None: it is not to be sent any more."""
    error_code: str | None
    """Why it failed last, or why it may be delivered twice."""
    error: str | None

    @cached_property
    def json(self) -> Any:
        """The payload, decoded. Raises `ValueError` if it is not JSON."""
        return json.loads(self.payload)

    @property
    def text(self) -> str:
        """The payload as text. Bytes that are not UTF-8 are replaced."""
        return self.payload.decode(errors="replace")

    @cached_property
    def task(self) -> StoredTask | None:
        """The Celery task that is stored in it; None if there is none, or none that can be read."""
        with suppress(Exception):  # each serializer and compression has errors of its own
            return _task(self.payload, TaskMessage.loads(self.headers[ENVELOPE]))
        return None

    def __str__(self) -> str:
        content = str(self.task or self.text)
        if len(content) > 200:
            content = f"{content[:200]}… ({len(content)} characters)"
        if self.task is not None:
            line = f"task {content} → {self.destination}, queue {self.task.queue!r}"
        else:
            key = "" if self.key is None else f"  key={self.key!r}"
            line = f"{self.event_type} → {self.destination}{key}  {content}"
        because = f", {self.error_code}" if self.error_code else ""
        return line if self.state == "pending" else f"{line}  ({self.state}{because})"


def _task(body: bytes, envelope: TaskMessage) -> StoredTask:
    headers, kind = envelope.headers, envelope.content_type
    # What the application itself has just written may be read, pickle too.
    encoding = envelope.content_encoding
    message = CeleryMessage(body, content_type=kind, content_encoding=encoding, headers=headers, accept={kind})
    args, kwargs, _ = message.decode()
    queue, *_ = (described["queue"]["name"] for described in envelope.declare if "queue" in described)
    return StoredTask(headers["task"], headers["id"], [*args], kwargs, queue, headers)
