"""Checks each message that arrives at a worker of the relay, before Celery runs it.

A malformed message would end the worker, and if it stayed in the queue, the next worker too. Anybody who reaches the
broker can put one there. So the worker refuses it with one line in the log, and goes on.

Waits are measured by one clock: see `_by_our_clock`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from kombu.exceptions import ContentDisallowed, DecodeError

from outbox_tasks.broker.internals import wrap_redis_read, wrap_task_handler
from outbox_tasks.broker.names import ALL_QUEUES, DRAIN_TASK, FEED_TASK, PUBLISH_TASK, TASKS, WAIT
from outbox_tasks.worker.resources import ConsumerStep

log = logging.getLogger(__name__)

MALFORMED = (
    ContentDisallowed, DecodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Exceptions of reading a malformed message."""

IS_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch


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
        if name in TASKS:
            raise TypeError(f"a message of protocol 1 names {name}")
    return name if isinstance(name, str) else None


def _is_astray(message: Any, name: str | None, tasks: Container[str | None]) -> bool:
    """Whether it is in one of our queues, for no task that is here. Celery reports those in other queues."""
    info = message.delivery_info
    return name not in tasks and isinstance(info, dict) and info.get("routing_key") in ALL_QUEUES


def _check(name: str, message: Any) -> None:
    """Raises one of `MALFORMED` unless it is as `Broker` and `RelayTask` write it."""
    headers = message.headers
    # Looked at before the body is read: the app that the relay is installed in may accept pickle.
    _need(message.content_type == "application/json", "its content type")
    arguments, keywords, embedded = message.payload
    _need(isinstance(arguments, list) and isinstance(keywords, dict) and isinstance(embedded, dict), "its body")
    _need(isinstance(headers["id"], str) and type(headers.get("retries", 0)) is int, "its headers")
    _need(not any(embedded.values()), "what is embedded in it")
    _need(headers.get("timelimit") in (None, [None, None]), "its time limits")
    if name == PUBLISH_TASK:
        event_type, destination, attempt, token = arguments
        _need(keywords.keys() <= {"more"}, "its keywords")
        _need_name(destination)
        _need(bool(IS_ID(token)), "its lease")
        is_attempt = type(attempt) is int and 0 <= attempt < 2**31
        _need(bool(IS_ID(headers["id"])) and is_attempt and isinstance(event_type, str), "its message")
    elif name == DRAIN_TASK:
        destination, *tokens = arguments
        _need(not keywords and len(tokens) <= 1 and all(map(IS_ID, tokens)), "its slot")
        _need_name(destination)
    elif name == FEED_TASK:
        sound = len(arguments) <= 1 and all(isinstance(name, str) and "\0" not in name for name in arguments)
        _need(sound and not keywords, "its arguments")
    else:
        _need(not arguments and not keywords, "its arguments")


def _need_name(destination: Any) -> None:
    _need(isinstance(destination, str) and "\x00" not in destination and bool(destination.encode()), "its destination")


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
