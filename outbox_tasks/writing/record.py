"""How one Celery call becomes a message of the outbox.

`Celery.send_task` runs as ever, but on a view of its app. The view's producer stores the finished message. So Celery
itself does routing, serializers, compression, stamps and signals, and nothing asks the broker or the result backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.time import maybe_iso8601
from kombu import Producer, Queue

from outbox_tasks.errors import InvalidMessage, PayloadNotSerializable
from outbox_tasks.model import Message, TaskHeaders
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage, describe
from outbox_tasks.wire.cloudevents import TRACE
from outbox_tasks.writing.unsent import remember

Store = Callable[[Message], object]
"""Stores a message, and chooses its destination. Returns an object that lives as long as the transaction; if it
may live longer, its `is_active` says whether the transaction is still open."""

Confirms = Callable[[Celery, str, Collection[str]], bool]
"""Whether a task is supervised if its destination does not say so. It gets the app, the task's name and its queues."""


class Target(NamedTuple):
    """Where calls of tasks go."""

    store: Store
    confirms: Confirms = lambda *_: False


class AppView(Celery):  # type: ignore[misc]
    """An app as `send_task` sees it, for one call: without broker and result backend."""

    recorder: Producer

    @property
    def backend(self) -> Any:
        # A real one would subscribe to the result now. It also does so when somebody asks for the result.
        return SimpleNamespace(on_task_call=lambda producer, task_id: None)

    @property
    def producer_pool(self) -> Any:
        # Celery checks here whether RabbitMQ delays the message. The outbox delays it in the table.
        return SimpleNamespace(
            connections=SimpleNamespace(connection=SimpleNamespace(transport=SimpleNamespace(driver_type="outbox")))
        )

    def producer_or_acquire(self, producer: Any = None) -> AbstractContextManager[Any]:
        return nullcontext(self.recorder)


def recording(app: Celery, name: str, target: Target) -> Celery:
    """A view of `app`. What it sends of the task `name` goes to the target."""
    # An app makes these when they are first used. They must belong to the app itself, not to the view.
    _ = app.conf.task_serializer, app.amqp, app.AsyncResult, app.thread_oid
    view: Celery = object.__new__(_view_of(type(app)))  # type: ignore[arg-type]
    view.__dict__.update(app.__dict__, recorder=_Recorder(app, name, target))
    return view


@cache
def _view_of(kind: type[Celery]) -> type[Celery]:
    return type(f"{kind.__name__}View", (AppView,) if kind is Celery else (AppView, kind), {})


class _Recorder(Producer):
    """A producer for one call: prepares the message as any other would, and stores it."""

    def __init__(self, app: Celery, name: str, target: Target) -> None:
        super().__init__(None)  # type: ignore[no-untyped-call]
        self._app = app
        self._name = name
        self._target = target
        self._times: tuple[datetime | None, datetime | None] | None = None
        self._declared: list[Any] = []

    @property
    def channel(self) -> Any:
        """The producer is its own channel, as kombu's transports have them."""
        return self

    @property
    def connection(self) -> Any:
        """Celery wraps the errors of a connection, or tries again after them; there will be none."""
        return SimpleNamespace(_reraise_as_library_errors=nullcontext, recoverable_connection_errors=())

    def publish(self, body: Any, **options: Any) -> None:  # type: ignore[override]
        """Celery calls this with the message, and then with a `task-sent` event if these are switched on."""
        if self._times is not None:
            return
        # The version of Celery's message protocol says where they are.
        fields = body if isinstance(body, Mapping) else options.get("headers") or {}
        self._times = _time(self._name, fields, "eta"), _time(self._name, fields, "expires")
        super().publish(body, **{**options, "retry": False})  # type: ignore[no-untyped-call]

    def maybe_declare(self, entity: Any, *_: Any, **__: Any) -> None:
        """kombu calls this for each entity that is to be declared before the message is sent."""
        self._declared.append(entity)

    def prepare_message(self, *parts: Any) -> tuple[Any, ...]:
        """kombu lets its channel make a message of body, priority, content type and encoding, headers, properties."""
        return parts

    def basic_publish(
        self, message: tuple[Any, ...], exchange: str, routing_key: str, mandatory: bool, **_: Any
    ) -> None:
        """kombu's `Producer.publish` ends here, with the prepared message."""
        assert self._times is not None
        eta, expires = self._times
        body, priority, content_type, content_encoding, headers, properties = message
        queues = {each.name for each in self._declared if isinstance(each, Queue)}
        envelope = TaskMessage(
            content_type, content_encoding, headers, properties, exchange, routing_key, priority, mandatory,
            describe(self._declared), expires, self._target.confirms(self._app, self._name, queues),
        )  # fmt: skip
        try:
            text = envelope.dumps()
        except (TypeError, ValueError) as error:
            raise PayloadNotSerializable(event_type=self._name, reason=f"in a header: {error}") from error
        # The trace of the call, if there is one: the relay carries that on.
        trace = {name: str(headers[name]) for name in TRACE if headers.get(name)}
        stored = Message(
            self._name,
            body.encode() if isinstance(body, str) else bytes(body),
            headers=TaskHeaders({ENVELOPE: text, **trace}),
            deliver_at=eta,
            aggregate_type="celery.task",
            aggregate_id=properties.get("correlation_id"),
            content_type=content_type,
        )
        remember(stored.aggregate_id, self._target.store(stored))


def _time(name: str, fields: Mapping[str, Any], field: str) -> datetime | None:
    value = fields.get(field)
    time = maybe_iso8601(value) if value else None
    if time is not None and time.tzinfo is None:
        rule = "has no time zone: pass a datetime with one, such as datetime.now(UTC)"
        raise InvalidMessage(event_type=name, field=field, value=value, rule=rule)
    return time
