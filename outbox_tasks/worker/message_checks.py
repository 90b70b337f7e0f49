"""Checks each message that arrives at a worker of the relay, before Celery runs it.

A malformed message would end the worker, and if it stayed in the queue, the next worker too. Anybody who reaches the
broker can put one there. So the worker refuses it with one line in the log, and goes on.

Waits are measured by one clock: see `_by_our_clock`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

from kombu.exceptions import ContentDisallowed, DecodeError
from pydantic import Field, TypeAdapter

from outbox_tasks.broker.internals import wrap_redis_read, wrap_task_handler
from outbox_tasks.broker.names import ALL_QUEUES, DRAIN_TASK, FEED_TASK, PUBLISH_TASK, TASKS, WAIT
from outbox_tasks.worker.resources import ConsumerStep

log = logging.getLogger(__name__)

MALFORMED = (
    ContentDisallowed, DecodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Exceptions of reading a malformed message."""

Text = Annotated[str, Field(strict=True)]
Name = Annotated[str, Field(strict=True, pattern=r"^[^\x00]+$")]
Id = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
Attempt = Annotated[int, Field(strict=True, ge=0, lt=2**31)]

ARGUMENTS: dict[str, TypeAdapter[Any]] = {
    PUBLISH_TASK: TypeAdapter(tuple[Text, Name, Attempt, Id]),
    DRAIN_TASK: TypeAdapter(tuple[Name] | tuple[Name, Id]),
    FEED_TASK: TypeAdapter(tuple[()] | tuple[Name]),
}
NO_ARGUMENTS: TypeAdapter[Any] = TypeAdapter(tuple[()])
MESSAGE_ID, TASK_ID = TypeAdapter(Id), TypeAdapter(Text)


class CheckMessages(ConsumerStep):
    """Stands between Celery's consumer and its tasks."""

    def create(self, consumer: Any) -> None:
        wrap_task_handler(consumer, partial(checked, consumer))

    def start(self, consumer: Any) -> None:
        """Called with each connection. Bytes that are no message fail earlier, in the Redis transport."""
        wrap_redis_read(consumer, _without_harm)


def _without_harm(read: Callable[..., Any]) -> Callable[..., Any]:
    def read_on(**options: Any) -> Any:
        try:
            return read(**options)
        except MALFORMED as error:
            _log_refused("no message of Celery's", error)
            return True

    return read_on


def checked(consumer: Any, take: Callable[[Any], None]) -> Callable[[Any], None]:
    """Like `take`, but refuses malformed messages."""

    def take_or_refuse(message: Any) -> None:
        try:
            name = _task_of(message)
            if name in TASKS:
                _check(name, message)
                _by_our_clock(message.headers)
            elif _is_astray(message, name, consumer.app.tasks):
                raise LookupError(f"there is no task {name!r} here")
            take(message)
        except MALFORMED as error:
            _log_refused(f"message {message.headers.get('id') if isinstance(message.headers, dict) else None!r}", error)
            if not message.acknowledged:
                message.reject_log_error(log, consumer.connection_errors)

    return take_or_refuse


def _log_refused(what: str, error: Exception) -> None:
    reason = repr(f"{type(error).__name__}: {error}"[:200])
    log.error("refused %s, which is not as the relay writes them: %s", what[:200], reason)


def _task_of(message: Any) -> str | None:
    """The name of its task; Celery's first protocol has it in the body, and its application may still use that."""
    headers = message.headers
    if isinstance(headers, dict) and "task" in headers:
        name = headers["task"]
    else:
        body = message.payload
        name = body.get("task") if isinstance(body, dict) else None
    return name if isinstance(name, str) else None


def _is_astray(message: Any, name: str | None, tasks: Container[str | None]) -> bool:
    """Whether it is in one of our queues, for no task that is here. Celery reports those in other queues."""
    info = message.delivery_info
    return name not in tasks and isinstance(info, dict) and info.get("routing_key") in ALL_QUEUES


def _check(name: str, message: Any) -> None:
    """Raises one of `MALFORMED` unless it is as `Broker` and `RelayTask` write it."""
    headers, is_single = message.headers, name == PUBLISH_TASK
    # Looked at before the body is read: the app that the relay is installed in may accept pickle.
    _need(message.content_type == "application/json", "its content type")
    arguments, keywords, embedded = message.payload
    ARGUMENTS.get(name, NO_ARGUMENTS).validate_python(arguments)
    _need(keywords.keys() <= ({"more"} if is_single else set()), "its keywords")
    _need(not any(embedded.values()), "what is embedded in it")
    _need(type(headers.get("retries", 0)) is int and headers.get("timelimit") in (None, [None, None]), "its headers")
    (MESSAGE_ID if is_single else TASK_ID).validate_python(headers["id"])


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise TypeError(f"{what}: not as it should be")


def _by_our_clock(headers: dict[str, Any]) -> None:
    """Let the wait count from the arrival. Celery writes an ETA by the sender's clock and reads it by ours: if they are
    minutes apart, a retry after a second would outlive its lease. For the same reason the message never expires: begin
    decides that, by the database's clock."""
    headers["expires"] = None
    wait = headers.get(WAIT)
    if wait is not None:
        headers["eta"] = (datetime.now(UTC) + timedelta(seconds=wait)).isoformat()
    elif headers.get("eta") is not None:
        datetime.fromisoformat(headers["eta"])
