"""One run of a supervised task, from its begin to its end, as the process that runs it sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from celery import current_task, signature
from celery.utils.functional import maybe_list

from outbox_tasks.model import Message
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import WEEK_SECONDS
from outbox_tasks.supervised.by_default import knows
from outbox_tasks.supervised.store import Begun, Fence
from outbox_tasks.wire import tracing
from outbox_tasks.wire.celery_message import RUN
from outbox_tasks.writing.capture import capturing, refuse_unaccepted, supervised
from outbox_tasks.writing.nudge import Nudge
from outbox_tasks.writing.record import Target
from outbox_tasks.writing.rows import Row, rows


class Copy(NamedTuple):
    """What the header of a supervised task says. The relay adds the header: see `docs/supervised-tasks.md`."""

    id: str
    of: str
    """The identity of its outbox."""
    lease: float
    content: str
    token: str
    """The token of its run. The worker's main process adds it as it receives the copy."""

    @classmethod
    def read(cls, headers: Mapping[str, Any]) -> Copy | None:
        """None: there is no such header, or it can't be read: see `is_ours`."""
        header: Any = headers.get(RUN)
        try:
            token = str(UUID(header.get("token") or str(uuid4())))
            id, of = str(UUID(header["id"])), str(UUID(header["of"]))
            copy = cls(id, of, float(header["lease"]), str(header["content"]), token)
        except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
            return None
        return copy if 0 < copy.lease <= WEEK_SECONDS else None

    @staticmethod
    def is_ours(headers: Mapping[str, Any]) -> bool:
        """Whether a relay wrote the header, readable or not. Others may name a header as we do."""
        header = headers.get(RUN)
        return isinstance(header, dict) and {"id", "of"} <= header.keys()

    @property
    def fence(self) -> Fence:
        return Fence(self.id, self.token)


class SupervisedRun:
    """A task that has begun to run. Celery's messages for it are kept here instead of being sent: its retry, and the
    tasks that follow it."""

    def __init__(self, settings: Settings, nudge: Nudge | None, fence: Fence, task: Any, begun: Begun | None) -> None:
        self.settings = settings
        self.nudge = nudge
        self.fence = fence
        self.task = task
        self.request = task.request
        self.begun = begun
        """What the row said as it began; None: nobody knows."""
        self.destination = begun and begun.destination
        self.waited = begun and begun.waited
        self.frees_key = begun is not None and begun.key is not None
        """Whether another message of its key may be due when it has ended."""
        self.following: list[tuple[str | None, Row]] = []
        """The tasks that follow it, as rows, each with its task id."""
        self.replaced = False
        """Whether another task takes its place: see `Task.replace`."""
        self.unwritable: Exception | None = None
        """Why a task that follows it can't be written."""
        self.keeps_value = False
        """Whether the archive keeps what the task returns."""
        self._began = time.monotonic()
        self.completed = False
        """Whether a transaction that completed it was committed."""

    def target_of(self, task_id: str | None, parent_id: str | None) -> Target | None:
        """Where a message goes that Celery sends for the running task; None: to the broker."""
        if current_task.request is not self.request:  # a task that the running one has called sends it
            return None
        if parent_id is None and task_id != self.request.id:
            return None  # the body of a chord: the result backend has counted the chord's header, and counts only once
        return self.target

    @property
    def target(self) -> Target:
        """The tasks that follow are supervised too, if they are this application's own."""
        return Target(self.follow, knows)

    def follow(self, message: Message) -> None:
        """Keep a message until the run ends. It is written in the same transaction."""
        try:
            same_task = message.aggregate_id == self.request.id
            destination = (self.destination if same_task else None) or self.settings.task_destination(
                message.event_type
            )
            refuse_unaccepted(message, self.settings.destinations[destination])
            _, following = rows(replace(message, to=destination), self.settings, tracing.current())
        except Exception as error:
            self.unwritable = error
            raise
        self.following += [(message.aggregate_id, row) for row in following]

    @property
    def ran(self) -> float:
        """For how many seconds it has run."""
        return round(time.monotonic() - self._began, 6)

    def returned(self, value: Any) -> dict[str, Any]:
        """What the record of its end says, beside its id and token."""
        return {"value": json.dumps(value), "ran": self.ran} if self.keeps_value else {}

    @property
    def retry(self) -> Row | None:
        """The copy that Celery made for a retry."""
        return next((row for task_id, row in self.following if task_id == self.request.id), None)

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.following]

    def note_completed(self, *_: Any, **__: Any) -> None:
        """Called when the transaction that completes it was committed."""
        self.completed = True

    def rows_after(self, result: Any) -> list[Row]:
        """The rows of the tasks that follow if the task ends with this result. Celery itself sends these tasks only
        after the task has ended."""
        kept, self.following = self.following, []
        try:
            with capturing(self.target):
                _send_following(self.task.app, self.request, result)
            return self.rows
        finally:
            self.following = kept


@contextmanager
def replacing(run: SupervisedRun | None) -> Iterator[None]:
    """Inside, Celery sends the task that takes the place of the running one."""
    if run is None:
        yield
        return
    run.replaced = True
    with capturing(run.target):
        yield


def current() -> SupervisedRun | None:
    """The run of this context."""
    run = supervised.get()
    return run if isinstance(run, SupervisedRun) else None


def _send_following(app: Any, request: Any, result: Any) -> None:
    """Send the callbacks of a task and the next one of its chain, as Celery does after a task."""
    options = {"parent_id": request.id, "root_id": request.root_id or request.id}
    if app.conf.task_inherit_parent_priority:
        options["priority"] = (request.delivery_info or {}).get("priority")
    for callback in maybe_list(request.callbacks) or ():
        signature(callback, app=app).apply_async((result,), **options)
    if request.chain:
        *rest, following = request.chain
        signature(following, app=app).apply_async((result,), chain=rest, **options)
