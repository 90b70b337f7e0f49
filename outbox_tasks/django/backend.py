"""A backend for Django's tasks: a task is written in Django's transaction, and runs on the project's Celery workers.

Each is a supervised Celery task, `RUN_TASK`. Its row is all that a result needs: the row's id is the id of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any
from uuid import UUID

from celery import Celery, current_app
from django.apps import apps
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from outbox_tasks.django.api import (
    DEFAULT_TASK_QUEUE_NAME,
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from outbox_tasks.django.project import outbox_of_project
from outbox_tasks.django.results import RUN_TASK, Call, NotOfDjango, changed, outcome
from outbox_tasks.model import Message, Priority
from outbox_tasks.operating.messages.find import latest
from outbox_tasks.outbox import Outbox
from outbox_tasks.wire.celery_message import RUN
from outbox_tasks.writing.capture import capturing
from outbox_tasks.writing.execution import Verb, read_in_django
from outbox_tasks.writing.record import Target
from outbox_tasks.writing.transactions import transaction_of

APP = "outbox_tasks.django"


class TasksBackend(BaseTaskBackend):
    """`TASKS = {"default": {"BACKEND": "outbox_tasks.django.TasksBackend"}}`.

    OPTIONS: `outbox`, the dotted name of the project's `Outbox`, if the Celery app is not told by its project;
    `database`, the alias of Django's database with the outbox tables.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._database = self.options.get("database", DEFAULT_DB_ALIAS)

    @cached_property
    def outbox(self) -> Outbox:
        """The project's outbox."""
        if named := self.options.get("outbox"):
            outbox: Outbox = import_string(named)
            return outbox
        return outbox_of_project()

    @cached_property
    def _find(self) -> Verb:
        return Verb("find/one.sql", self.outbox.settings.database_schema)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Write a task in the open transaction, or in one of its own."""
        self.validate_task(task)
        result = self._result(task, list(args), kwargs)
        connection = connections[self._database]
        with nullcontext() if connection.in_atomic_block else transaction.atomic(using=self._database):
            id = self._write(connection, task, result)
        changed(result, id=str(id), enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def _write(self, connection: Any, task: Any, result: Any) -> UUID:
        written: list[UUID] = []

        def store(message: Message) -> object:
            named = replace(message, event_type=task.module_path, priority=_priority(task.priority))
            written.append(self.outbox.write_task(connection, named))
            return transaction_of(connection, named.event_type).anchor()

        due = task.run_after
        if due is not None and timezone.is_naive(due):  # a project without time zones
            due = timezone.make_aware(due)
        call = Call(task.module_path, result.args, result.kwargs, self.alias, task.queue_name, task.priority, due)
        # Its own name is that of the function, also in Flower and in the worker's log.
        options: dict[str, Any] = {"shadow": task.module_path, "serializer": "json", "ignore_result": True}
        if task.queue_name != DEFAULT_TASK_QUEUE_NAME:
            options["queue"] = task.queue_name
        with capturing(Target(store, lambda *_: True)):
            self._app.send_task(RUN_TASK, call.args, call.kwargs, eta=due, **options)
        return written[0]

    @property
    def _app(self) -> Celery:
        return self.outbox.celery or current_app

    def get_result(self, result_id: str) -> Any:
        """The result of a task of this backend, as its row says. Raises `TaskResultDoesNotExist`."""
        try:
            which = {"ids": [str(UUID(str(result_id)))], "part": None, "start": 0}
            row = latest(read_in_django(connections[self._database], self._find, which))
            call = Call.of(row)
        except (ValueError, NotOfDjango):
            raise TaskResultDoesNotExist(result_id) from None
        if call.backend != self.alias:
            raise TaskResultDoesNotExist(result_id)
        result = self._result(task_of(call), call.arguments, call.keywords)
        value, facts = outcome(row)
        return changed(result, id=str(row["id"]), _return_value=value, **facts)

    def running(self, task: Any, call: Call, request: Any) -> Any:
        """The result of a task that has just begun to run in this process. Only tasks that take their context know of
        earlier runs: that takes a look at the row."""
        id = _row_id(request)
        result = self.get_result(id) if task.takes_context else self._result(task, call.arguments, call.keywords)
        if result.status != TaskResultStatus.RUNNING:
            result.worker_ids.append(request.hostname)
        facts = {"id": id, "status": TaskResultStatus.RUNNING, "last_attempted_at": timezone.now()}
        facts["started_at"] = result.started_at or facts["last_attempted_at"]
        return changed(result, **facts)

    def _result(self, task: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        times = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
        call = {"task": task, "args": args, "kwargs": kwargs, "backend": self.alias}
        return TaskResult(id="", status=TaskResultStatus.READY, errors=[], worker_ids=[], **times, **call)

    def check(self, **_: Any) -> Iterator[checks.CheckMessage]:
        """For `manage.py check`."""
        if not apps.is_installed(APP):
            hint = f"Add {APP!r} to INSTALLED_APPS: workers find the Celery task {RUN_TASK} there."
            yield checks.Error("No worker can run the tasks of outbox_tasks.", hint=hint, id="outbox_tasks.E001")
        settings = self.outbox.settings
        if all(destination.scheme != "celery" for destination in settings.destinations.values()):
            hint = 'Add [destinations.tasks] with url = "celery://" to outbox.toml, or name the file in OUTBOX_CONFIG.'
            yield checks.Error("The outbox has no destination for tasks.", hint=hint, id="outbox_tasks.E002")
        if self.outbox.feed is not None:
            hint = "Name an outbox without a feed in OPTIONS, and the `database` that has the relay's tables."
            yield checks.Error("Results can't be read through a feed.", hint=hint, id="outbox_tasks.E003")


def task_of(call: Call) -> Any:
    """The task of a call. Raises `ImportError`, or `TypeError` if its name is not that of a task."""
    task = import_string(call.path)
    if not isinstance(task, Task):
        raise TypeError(f"{call.path} is no task: decorate it with @task")
    return task.using(priority=call.priority, queue_name=call.queue, run_after=call.run_after, backend=call.backend)


def _row_id(request: Any) -> str:
    """The id of the row whose task a worker runs. The relay's header says it."""
    header = vars(request).get(RUN)
    return str(header["id"]) if header else str(request.id)


def _priority(number: int) -> Priority:
    return "high" if number > 0 else "low" if number < 0 else "normal"
