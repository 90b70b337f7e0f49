"""Runs a Django task in a Celery worker."""

from __future__ import annotations

from traceback import format_exception
from typing import Any

from django.utils import timezone

from outbox_tasks.django.api import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from outbox_tasks.django.backend import task_of
from outbox_tasks.django.results import Call, changed
from outbox_tasks.supervised.run import current


def run(request: Any, call: Call) -> Any:
    """Call the function of a task, tell Django's signals, and keep its return value on the row."""
    backend = task_backends[call.backend]
    task = task_of(call)
    result = backend.running(task, call, request)
    task_started.send_robust(type(backend), task_result=result)
    if (supervised := current()) is not None:
        supervised.keeps_value = True
    context = (TaskContext(task_result=result),) if task.takes_context else ()
    try:
        value = normalize_json(task.call(*context, *result.args, **result.kwargs))
    except Exception as error:
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        result.errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
        changed(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        raise
    else:
        changed(result, _return_value=value, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())
        return value
    finally:
        task_finished.send_robust(type(backend), task_result=result)
