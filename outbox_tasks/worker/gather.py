"""Runs publish tasks that wait in the queue together: one begin, one send and one settle for all of them.

With `bundle_size = 1` each message is a Celery message of its own, and costs a worker three round trips. So a worker
that finds several of them waiting makes a bundle of them, and of their leases one. Celery still sees a task for each:
see `bundles`. A retry, or a message that travels alone for another reason, runs alone and at once.

Celery calls the strategy of a task with each message that arrives for it.
https://docs.celeryq.dev/en/stable/userguide/extending.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from celery import Task
from celery.worker.request import create_request_cls
from celery.worker.state import task_reserved
from celery.worker.strategy import default

from outbox_tasks.broker.names import BUNDLE_TASK
from outbox_tasks.worker.bundles import BundleRequest

LIMIT = 25
"""Messages that run together at most. More would bring little, and would take messages from other workers."""

PAUSE = 0.001
"""After so many seconds without another message, the gathered messages run."""

Arrival = tuple[Any, Any, Callable[..., Any], Callable[..., Any], Any]
"""What Celery hands to a strategy: message, body, ack, reject, callbacks."""


def strategy(task: Task, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """The strategy of the publish task: see Celery's `Task.Strategy`."""
    alone: Callable[..., Any] = default(task, app, consumer, **options)
    if consumer.hub is None:  # without an event loop it can't know whether more is waiting
        return alone
    return Gathering(app, consumer, alone)


class Gathering:
    """The messages that one consumer has received and not yet run."""

    def __init__(self, app: Any, consumer: Any, alone: Callable[..., Any]) -> None:
        self._app = app
        self._consumer = consumer
        self._alone = alone
        self._task = app.tasks[BUNDLE_TASK]
        self._request = create_request_cls(
            BundleRequest, self._task, consumer.pool, consumer.hostname, consumer.event_dispatcher, app=app
        )
        self._arrivals: list[Arrival] = []
        self._destination: str | None = None
        self._seen = 0

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **_: Any) -> None:
        """Take a message that has arrived."""
        arguments, keywords, _embed = message.payload
        if message.headers.get("eta") or not keywords.get("gather"):
            self._alone(message, body, ack, reject, callbacks)
            return
        _event_type, destination, _attempt, _lease = arguments
        if self._destination != destination:
            self._run()
            self._destination = destination
        self._arrivals.append((message, body, ack, reject, callbacks))
        if len(self._arrivals) >= LIMIT:
            self._run()
        elif len(self._arrivals) == 1:
            self._watch()

    def _watch(self) -> None:
        self._seen = len(self._arrivals)
        self._consumer.timer.call_after(PAUSE, self._look)

    def _look(self) -> None:
        if len(self._arrivals) > self._seen:
            self._watch()
        else:
            self._run()

    def _run(self) -> None:
        arrivals, self._arrivals, self._destination = self._arrivals, [], None
        if len(arrivals) == 1:
            self._alone(*arrivals[0])
        elif arrivals:
            self._run_together(arrivals)

    def _run_together(self, arrivals: list[Arrival]) -> None:
        """Do what Celery's own strategy does for one message, with a bundle of several."""
        rows, leases, more = [], [], False
        for message, *_ in arrivals:
            (event_type, destination, attempt, lease), keywords, _embed = message.payload
            rows.append((message.headers["id"], attempt, event_type))
            leases.append(lease)
            more = more or bool(keywords.get("more"))
        first = arrivals[0][0]
        bundle_id = str(uuid4())
        together = str(uuid4())
        headers = {**first.headers, "id": bundle_id, "root_id": bundle_id, "task": BUNDLE_TASK, "retries": 0}
        headers["argsrepr"], headers["kwargsrepr"] = f"{destination}: {len(rows)}", "{}"
        request = self._request(
            first,
            body=((destination, together, rows), {"more": more, "leases": leases}, {}),
            headers=headers,
            decoded=True,
            task=self._task,
            app=self._app,
            hostname=self._consumer.hostname,
            eventer=self._consumer.event_dispatcher,
            connection_errors=self._consumer.connection_errors,
            on_ack=_each([ack for _m, _b, ack, _r, _c in arrivals]),
            on_reject=_each([reject for _m, _b, _a, reject, _c in arrivals]),
        )
        if request.revoked():
            return
        task_reserved(request)
        for _message, _body, _ack, _reject, callbacks in arrivals:
            for callback in callbacks or ():
                callback(request)
        self._consumer.on_task_request(request)


def _each(functions: list[Callable[..., Any]]) -> Callable[..., None]:
    def call(*arguments: Any, **keywords: Any) -> None:
        for function in functions:
            function(*arguments, **keywords)

    return call
