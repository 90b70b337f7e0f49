"""What the row of a Django task says: the call, and how it went."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self

from django.conf import settings
from django.utils import timezone
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from outbox_tasks.django.api import TaskError, TaskResultStatus
from outbox_tasks.wire.celery_message import ENVELOPE, JSON, TaskMessage
from outbox_tasks.wire.cloudevents import UNEXPRESSED

RUN_TASK = "outbox_tasks.django.run_task"
"""The name of the Celery task that runs every Django task."""

ACCEPTED = prepare_accept_content([JSON])

STATUS = {
    "running": TaskResultStatus.RUNNING,
    "sent": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "discarded": TaskResultStatus.FAILED,
}
"""By the state of the row; all others: ready."""

OF_CELERY = {
    "worker_lost": "billiard.exceptions.WorkerLostError",
    "TimeLimitExceeded": "celery.exceptions.TimeLimitExceeded",
}
"""How a run ended whose process could not say it, as an exception."""


class NotOfDjango(Exception):
    """The row is not that of a Django task."""


class Call(NamedTuple):
    """A call of a Django task, as the Celery task gets it."""

    path: str
    arguments: list[Any]
    keywords: dict[str, Any]
    backend: str
    queue: str
    priority: int
    run_after: datetime | None

    @property
    def args(self) -> list[Any]:
        return [self.path, self.arguments, self.keywords]

    @property
    def kwargs(self) -> dict[str, Any]:
        due = None if self.run_after is None else self.run_after.isoformat()
        return {"backend": self.backend, "queue": self.queue, "priority": self.priority, "run_after": due}

    @classmethod
    def made(cls, path: str, args: list[Any], kwargs: dict[str, Any], run_after: str | None, **rest: Any) -> Self:
        """From the arguments of the Celery task."""
        due = as_project(datetime.fromisoformat(run_after)) if run_after else None
        return cls(path, args, kwargs, run_after=due, **rest)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The call that a row has stored. Raises `NotOfDjango`: anybody can write a row, and ask for its result."""
        try:
            task = TaskMessage.loads(_plain(row["headers"])[ENVELOPE])
            if task.headers.get("task") != RUN_TASK:
                raise NotOfDjango
            kinds = {"content_type": task.content_type, "content_encoding": task.content_encoding}
            message = Message(bytes(row["payload"]), headers=task.headers, accept=ACCEPTED, **kinds)
            args, kwargs, _ = message.decode()
            return cls.made(*args, **kwargs)
        except UNEXPRESSED as error:
            raise NotOfDjango from error


def changed(result: Any, **fields: Any) -> Any:
    """A result with other values. Results are frozen for applications only: Django's own backends set the fields like
    this too."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
    return result


def outcome(row: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The return value, and the other fields of a `TaskResult`."""
    state, history = row["state"], _plain(row["history"]) or []
    runs = [entry for entry in history if _is_run(entry)]
    workers = [str(entry["by"]) for entry in runs if entry.get("by")]
    errors = [_error(entry) for entry in runs if entry["what"] not in ("returned", "retried")]
    finished = row["finished_at"] or row["dead_at"]
    if state == "running":
        workers.append(row["locked_by"])
    elif STATUS.get(state) == TaskResultStatus.FAILED and (not runs or runs[-1].get("code") != row["last_error_code"]):
        errors.append(_error({"code": row["last_error_code"], "error": row["last_error"]}))
    began = [started for entry in runs if (started := _began(entry))]
    if state == "running" and row["handed_at"]:
        began.append(row["handed_at"])
    returned = next((entry["value"] for entry in runs if entry["what"] == "returned"), None)
    return None if returned is None else json.loads(returned), {
        "status": STATUS.get(state, TaskResultStatus.READY),
        "enqueued_at": row["created_at"],
        "started_at": began[0] if began else None,
        "last_attempted_at": began[-1] if began else None,
        "finished_at": finished,
        "worker_ids": workers,
        "errors": errors,
    }


def _is_run(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of a history is about a run in a worker, not about the relay."""
    return entry.get("what") in ("returned", "retried") or "traceback" in entry or entry.get("code") in OF_CELERY


def _began(entry: Mapping[str, Any]) -> datetime | None:
    ran = entry.get("ran")
    return None if ran is None else as_project(datetime.fromisoformat(entry["at"]) - timedelta(seconds=ran))


def as_project(moment: datetime) -> datetime:
    """A time as the project has it: local, and without a zone, if its setting USE_TZ is False."""
    return moment if settings.USE_TZ else timezone.make_naive(moment)


def _error(entry: Mapping[str, Any]) -> Any:
    code, trace = str(entry.get("code")), entry.get("traceback") or str(entry.get("error") or "")
    return TaskError(exception_class_path=OF_CELERY.get(code) or _path(code, trace), traceback=trace)


def _path(name: str, trace: str) -> str:
    """The dotted name of an exception's class, which ends in `name`: the last line of a traceback begins with it."""
    names = re.findall(rf"^((?:\w+\.)*{re.escape(name)})(?::|$)", trace, re.MULTILINE)
    if not names:
        return "outbox_tasks.errors.DeadLetter"
    return str(names[-1]) if "." in names[-1] else f"builtins.{names[-1]}"


def _plain(value: Any) -> Any:
    """A JSON value. Some of Django's drivers give it as text."""
    return json.loads(value) if isinstance(value, str) else value
