"""Which Celery calls are stored in the outbox: `delay` and `apply_async` store a task where they would have sent it.

All calls go through `Celery.send_task` in the end. A wrapper around it decides for each call; `record` stores it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache, partial, wraps
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from celery import Celery, Task, current_task
from celery.canvas import Signature
from celery.result import AsyncResult

from outbox_tasks.errors import UncapturableTask
from outbox_tasks.model import Message
from outbox_tasks.settings.destination import Destination
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage, accepted
from outbox_tasks.writing.blocks import block, current
from outbox_tasks.writing.internals import sends_what_follows, wrap_calls
from outbox_tasks.writing.record import Target, recording
from outbox_tasks.writing.unsent import refuse_to_wait, subscribing_later

CALLS = ("delay", "apply_async")
"""The methods that call a task."""

_target_of_app: WeakKeyDictionary[Celery, Callable[[], Target | None]] = WeakKeyDictionary()
"""For each app that is captured as a whole: where a call goes now; None: to the broker."""


class Supervised(Protocol):
    """A supervised task that runs in this context: see `supervised.run.SupervisedRun`."""

    def target_of(self, task_id: str | None, parent_id: str | None) -> Target | None:
        """Where a message goes that the worker sends; None: to the broker."""


supervised: ContextVar[Supervised | None] = ContextVar("outbox_supervised", default=None)


def capturing(target: Target) -> AbstractContextManager[None]:
    """Store all tasks that are sent in this context, of any app."""
    wrap()
    return block(target)


def direct() -> AbstractContextManager[None]:
    """Send the tasks of this context to the broker, inside `capturing` and for captured apps too."""
    return block(None)


@contextmanager
def storing_on_commit(session: Any, inside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """At the end, make the calls of tasks that Django's connection would make after its commit: they are stored now,
    in a block that `inside` opens. What else waits for the commit goes on waiting. Other kinds of sessions have nothing
    like it."""
    before = [function for _, function, *_ in getattr(session, "run_on_commit", ())]
    yield
    kept: list[Any] = []
    calls: list[Any] = []
    for waiting in getattr(session, "run_on_commit", ()):  # Django has taken out what a savepoint has rolled back
        function = waiting[1]
        new = not any(function is old for old in before)
        (calls if new and _calls_task(function) else kept).append(waiting)
    if calls:
        session.run_on_commit = kept
        with inside():
            for _, function, *_ in calls:
                function()


def _calls_task(function: Any) -> bool:
    """Whether it is `delay` or `apply_async` of a task or signature, perhaps with arguments. A call of an eager app
    waits for the commit: it can't be stored, and would run inside the transaction."""
    while isinstance(function, partial):
        function = function.func
    task: Any = getattr(function, "__self__", None)
    is_call = isinstance(task, Task | Signature) and function.__name__ in CALLS
    return is_call and not task.app.conf.task_always_eager


def nothing_stored(task: Any) -> str:
    """Why a call has stored nothing."""
    call = (task.type if isinstance(task, Signature) else task).__class__.apply_async.__qualname__
    return (
        f"{call} has stored nothing: it may wait for the commit itself, and send the task then, past the "
        "outbox. Let it call super().apply_async at once; if it skips a task on purpose, let it return a result"
    )


def capture_app(app: Celery, choose: Callable[[], Target | None]) -> None:
    """Ask `choose` for each task that `app` sends outside of `capturing` and `direct`."""
    wrap()
    _target_of_app[app] = choose


@cache
def wrap() -> None:
    """Wrap the ways to call a task and to wait for its result, once."""
    wrap_calls(_store_or_send, _then_later, _get_once_sent)


def _store_or_send(send_task: Callable[..., Any]) -> Callable[..., Any]:
    names = tuple(inspect.signature(send_task).parameters)[1:]

    @wraps(send_task)
    def send_or_store(self: Celery, *args: Any, **options: Any) -> Any:
        # Where does a call go? There are three cases.
        # 1. A worker sends what follows a task that has ended, or a retry of the running one: with the run, if the task
        #    is supervised, else to the broker. The transaction of the task has ended, or is rolled back.
        # 2. It is in a block of `capturing` or `direct`: where that says.
        # 3. It is in no block: where `capture_app` says for its app, else to the broker.
        call = {**dict(zip(names, args, strict=False)), **options}
        task_id, parent_id = call.get("task_id"), call.get("parent_id")
        if _is_of_the_worker(task_id, parent_id):
            run = supervised.get()
            target = None if run is None else run.target_of(task_id, parent_id)
        else:
            target = _chosen(self)
            if target is None and (guard := getattr(self, "outbox_guard", None)) is not None:
                guard(call.get("name", ""))
        if target is None:
            return send_task(self, *args, **options)
        if call.get("connection") is not None:
            reason = "it was called with a connection of its own, which can't be stored; leave `connection` out"
            raise UncapturableTask(task=call["name"], reason=reason)
        return send_task(recording(self, call["name"], target), *args, **options)

    return send_or_store


def _then_later(then: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(then)
    def then_later(self: AsyncResult, *args: Any, **options: Any) -> Any:
        # A group subscribes to its tasks in the result backend, to know when they are ready.
        if _chosen(self.app) is not None:
            return subscribing_later(self).then(*args, **options)
        return then(self, *args, **options)

    return then_later


def _get_once_sent(get: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(get)
    def get_once_sent(self: AsyncResult, *args: Any, **options: Any) -> Any:
        refuse_to_wait(self)
        return get(self, *args, **options)

    return get_once_sent


def _chosen(app: Celery) -> Target | None:
    """Where a call goes; None: to the broker."""
    if (inside := current()) is not None:
        return inside.target
    return _target_of_app[app]() if app in _target_of_app else None


def _is_of_the_worker(task_id: str | None, parent_id: str | None) -> bool:
    """Whether the worker sends this, not the application: a retry of the running task, whose exception rolls the
    transaction back, or what follows a task that has ended."""
    if sends_what_follows():
        return True
    running = current_task.request.id if current_task else None
    # A task that follows another names its parent. No call of an application does.
    return running is not None and running in (task_id, parent_id)


def refuse_unaccepted(message: Message, destination: Destination) -> None:
    """Raises `UncapturableTask` for a stored task of a content type that its destination does not accept, or for a
    queue that it does not have."""
    types = accepted(destination)
    if message.content_type not in types:
        reason = (
            f"its content type is {message.content_type}, and destination {destination.name!r} accepts "
            f"{', '.join(sorted(types))}; call it with serializer='json', or let the destination accept more, "
            "by the option accept=json,pickle of its URL"
        )
        raise UncapturableTask(task=message.event_type, reason=reason)
    if destination.queues and isinstance(message.payload, bytes) and message.headers:
        task = TaskMessage.loads(message.headers[ENVELOPE])
        if refused := task.misdirection(message.payload, destination.queues):
            raise UncapturableTask(task=message.event_type, reason=refused)
