"""Celery tasks into the outbox: what `delay` and `apply_async` would have sent is stored instead.

`Celery.send_task`, through which every call goes in the end, runs as it always does, over a view of its app whose
producer writes down the finished message. So routing, serializers, compression, stamps and signals are Celery's own,
and neither the broker nor the result backend is asked for anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from functools import cache, wraps
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from celery import Celery, current_task
from celery.app import amqp
from celery.backends.base import DisabledBackend
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601
from kombu import Producer

from outbox_tasks.errors import InvalidMessage, PayloadNotSerializable, ResultNotThereYet, UncapturableTask
from outbox_tasks.model import Message, TaskHeaders
from outbox_tasks.settings.destination import Destination
from outbox_tasks.text import is_text
from outbox_tasks.wire.celery_message import ENVELOPE, TaskMessage, accepted, describe
from outbox_tasks.wire.cloudevents import TRACE

Store = Callable[[Message], object]
"""Takes a finished message, whose destination is still open; returns what says by `is_active`, for as long as it lives,
whether the transaction that it is stored in is still open."""

_store: ContextVar[Store | None] = ContextVar("outbox_capture", default=None)
"""Where the calls of this context go; None: `_app_wide` decides."""

_app_wide: WeakKeyDictionary[Celery, Callable[[], Store | None]] = WeakKeyDictionary()
"""For each app that is captured as a whole: where a call goes at this moment; None: to the broker."""

_producer: ContextVar[Producer | None] = ContextVar("outbox_recorder", default=None)


def _direct(message: Message) -> object:
    raise AssertionError  # stands for the broker; never called


@contextmanager
def capturing(store: Store) -> Iterator[None]:
    """Store what is sent in this context, whatever the app."""
    _wrap()
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


@contextmanager
def direct() -> Iterator[None]:
    """Send what is sent in this context, whatever captures it otherwise."""
    token = _store.set(_direct)
    try:
        yield
    finally:
        _store.reset(token)


def capture_app(app: Celery, choose: Callable[[], Store | None]) -> None:
    """Ask `choose` for every task that `app` sends outside of `capturing` and `direct`."""
    _wrap()
    _app_wide[app] = choose


@cache
def _wrap() -> None:
    """Put ourselves in front of `Celery.send_task`, once. A `producer` handed to `Task.apply_async` gets lost on some
    of its ways (in a chain, say), so that nothing less catches every call."""
    original = Celery.send_task
    signature = inspect.signature(original)

    @wraps(original)
    def send_task(self: Celery, *args: Any, **options: Any) -> Any:
        store = None if isinstance(self, _View) else _chosen(self)
        if store is None:
            return original(self, *args, **options)
        call = signature.bind(self, *args, **options).arguments
        call.update(call.pop("options", {}))
        name, task_id = call["name"], call.get("task_id")
        if _belongs_to_worker(task_id, call.get("parent_id")):
            return original(self, *args, **options)
        _refuse_what_can_not_wait(self, call)
        token = _producer.set(_Recorder(name, store))
        try:
            return original(_view(self), *args, **options)
        finally:
            _producer.reset(token)

    Celery.send_task = send_task
    then = AsyncResult.then

    @wraps(then)
    def then_later(self: AsyncResult, *args: Any, **options: Any) -> Any:
        # A group wants to know when each of its tasks is ready, and subscribes to them in the result backend.
        if _chosen(self.app) is not None:
            self.__class__ = _stored_result(type(self))  # type: ignore[arg-type]
            return self.then(*args, **options)
        return then(self, *args, **options)

    AsyncResult.then = then_later
    get = AsyncResult.get

    @wraps(get)
    def get_once_sent(self: AsyncResult, *args: Any, **options: Any) -> Any:
        _refuse_to_wait(self)
        return get(self, *args, **options)

    AsyncResult.get = AsyncResult.wait = get_once_sent


class _Unsent:
    """The stored tasks of one transaction."""

    def __init__(self, opened: Any) -> None:
        self._opened = ref(opened)
        self._thread = get_ident()

    def is_waited_for_in_vain(self) -> bool:
        """Whether the transaction is open, and whoever could commit it is who asks."""
        opened = self._opened()
        return opened is not None and opened.is_active and self._thread == get_ident()


_unsent: WeakKeyDictionary[Any, _Unsent] = WeakKeyDictionary()
"""By the transaction: they go with it."""

_unsent_by_id: WeakValueDictionary[str, _Unsent] = WeakValueDictionary()


def _remember(task_id: str | None, opened: Any) -> None:
    if task_id is not None and opened is not None:
        if opened not in _unsent:
            _unsent[opened] = _Unsent(opened)
        _unsent_by_id[task_id] = _unsent[opened]


def _refuse_to_wait(result: Any) -> None:
    """Raises `ResultNotThereYet` if the task, or one that it follows, is stored in a transaction that is still open."""
    while result is not None:
        for each in (result, *(getattr(result, "results", None) or ())):
            unsent = _unsent_by_id.get(each.id)
            if unsent is not None and unsent.is_waited_for_in_vain():
                raise ResultNotThereYet(task=each.id)
        result = result.parent


def _chosen(app: Celery) -> Store | None:
    store = _store.get()
    if store is _direct:
        return None
    if store is None and app in _app_wide:
        return _app_wide[app]()
    return store


def _belongs_to_worker(task_id: str | None, parent_id: str | None) -> bool:
    """Whether the worker speaks, not the application: a retry of the running task, whose exception will roll the
    transaction back, or what follows a task that has ended."""
    after = getattr(amqp, "_callback_publish_retry", None)
    if after is not None and after.get():
        return True
    running = current_task.request.id if current_task else None
    # Before Celery 5.7 there is no such mark. There what follows a task names its parent, as no call of the
    # application does.
    return running is not None and running in ((task_id, parent_id) if after is None else (task_id,))


class _View(Celery):  # type: ignore[misc]
    """An app as `send_task` is to see it: no broker and no result backend behind it."""

    @property
    def backend(self) -> Any:
        # Only told of the call. A real one would subscribe to the result; asking for the result does that too.
        return SimpleNamespace(on_task_call=lambda producer, task_id: None)

    @property
    def producer_pool(self) -> Any:
        # Looked at for RabbitMQ's delayed delivery: here the message waits in the table.
        return SimpleNamespace(
            connections=SimpleNamespace(connection=SimpleNamespace(transport=SimpleNamespace(driver_type="outbox")))
        )

    def producer_or_acquire(self, producer: Any = None) -> AbstractContextManager[Any]:
        return nullcontext(_producer.get())


_views: dict[type[Celery], type[Celery]] = {}


def _view(app: Celery) -> Celery:
    # What an app makes when first asked is to belong to the app itself.
    _ = app.conf.task_serializer, app.amqp, app.AsyncResult, app.thread_oid
    kind = type(app)
    if kind not in _views:
        _views[kind] = type(f"{kind.__name__}View", (_View,) if kind is Celery else (_View, kind), {})
    view: Celery = object.__new__(_views[kind])
    view.__dict__.update(app.__dict__)
    return view


class _StoredResult:
    """The result of a stored task of a group. It subscribes when somebody asks for it, one by one."""

    on_ready: Any
    supports_native_join = False

    def then(self, callback: Any, on_error: Any = None, weak: bool = False) -> Any:
        """Call back once it is known to be ready."""
        return self.on_ready.then(callback, on_error)


@cache
def _stored_result(kind: type[AsyncResult]) -> type[Any]:
    return type(f"Stored{kind.__name__}", (_StoredResult, kind), {})


class _Recorder(Producer):
    """A producer for one call: prepares the message as any other would, and stores it."""

    def __init__(self, name: str, store: Store) -> None:
        super().__init__(None)  # type: ignore[no-untyped-call]
        self._name = name
        self._store = store
        self._times: tuple[datetime | None, datetime | None] | None = None

    @property
    def connection(self) -> Any:
        """Celery wraps its errors; there will be none."""
        return SimpleNamespace(_reraise_as_library_errors=nullcontext)

    def publish(self, body: Any, **options: Any) -> None:  # type: ignore[override]
        """Called by Celery with the message, and once more with a `task-sent` event where these are switched on."""
        if self._times is not None:
            return
        # Where they are depends on the version of Celery's message protocol.
        fields = body if isinstance(body, Mapping) else options.get("headers") or {}
        self._times = _time(self._name, fields, "eta"), _time(self._name, fields, "expires")
        # kombu's own preparation, down to `_publish`. How often to try, and how long, is for the relay.
        for name in ("retry", "retry_policy", "timeout", "confirm_timeout"):
            options.pop(name, None)
        super().publish(body, **options)  # type: ignore[no-untyped-call]

    def _publish(
        self,
        body: Any,
        priority: Any,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        exchange: str,
        declare: list[Any],
        *_: Any,
    ) -> None:
        assert self._times is not None
        eta, expires = self._times
        envelope = TaskMessage(
            content_type, content_encoding, headers, properties, exchange, routing_key, priority, mandatory,
            describe(declare), expires,
        )  # fmt: skip
        try:
            text = envelope.dumps()
        except (TypeError, ValueError) as error:
            raise PayloadNotSerializable(event_type=self._name, reason=f"in a header: {error}") from error
        opened = self._store(
            Message(
                self._name,
                body.encode() if isinstance(body, str) else bytes(body),
                headers=TaskHeaders({ENVELOPE: text, **_trace(headers)}),
                deliver_at=eta,
                aggregate_type="celery.task",
                aggregate_id=properties.get("correlation_id"),
                content_type=content_type,
            )
        )
        _remember(properties.get("correlation_id"), opened)


def _trace(headers: Mapping[str, Any]) -> dict[str, str]:
    """The trace of the call, if the application or its instrumentation says one: the relay carries that on."""
    return {name: str(headers[name]) for name in TRACE if is_text(headers.get(name))}


def _time(name: str, fields: Mapping[str, Any], field: str) -> datetime | None:
    value = fields.get(field)
    time = maybe_iso8601(value) if value else None
    if time is not None and time.tzinfo is None:
        rule = "has no time zone: pass a datetime with one, such as datetime.now(UTC)"
        raise InvalidMessage(event_type=name, field=field, value=value, rule=rule)
    return time


def _refuse_what_can_not_wait(app: Celery, call: Mapping[str, Any]) -> None:
    if call.get("connection") is not None:
        reason = "it was called with a connection of its own, which can't be stored; leave `connection` out"
        raise UncapturableTask(task=call["name"], reason=reason)
    after = [call.get(name) for name in ("chord", "chain", "link", "link_error")]
    if any(_has_chord(each) for each in after[1:]) or after[0] is not None:
        refuse_chords(app, call["name"])


def refuse_unaccepted(message: Message, destination: Destination) -> None:
    """Raises `UncapturableTask` for a stored task of a content type that its destination does not accept."""
    types = accepted(destination)
    if message.content_type not in types:
        reason = (
            f"its content type is {message.content_type}, and destination {destination.name!r} accepts "
            f"{', '.join(sorted(types))}; call it with serializer='json', or let the destination accept more, "
            "by the option accept=json,pickle of its URL"
        )
        raise UncapturableTask(task=message.event_type, reason=reason)


def refuse_chords(app: Celery, name: str) -> None:
    """Raises `UncapturableTask` if the app can't run chords. Its workers would find out, long after the commit."""
    if isinstance(app.backend, DisabledBackend):
        reason = "it is part of a chord, which needs a result backend: set result_backend, or make it a group"
        raise UncapturableTask(task=name, reason=reason)


def _has_chord(signature: Any) -> bool:
    """Whether a signature, or one that follows from it, is a chord."""
    if isinstance(signature, list | tuple):
        return any(_has_chord(each) for each in signature)
    if not isinstance(signature, Mapping):
        return False
    if signature.get("subtask_type") == "chord" or signature.get("task") == "celery.chord":
        return True
    options, kwargs = signature.get("options") or {}, signature.get("kwargs") or {}
    return any(_has_chord(options.get(name)) for name in ("link", "link_error", "chain", "chord")) or (
        _has_chord(kwargs.get("tasks"))
    )
