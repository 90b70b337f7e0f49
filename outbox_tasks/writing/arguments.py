"""Checks what an application passes to `Outbox`, where a value of a wrong kind would fail late, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from celery import Celery

from outbox_tasks.errors import InvalidArgument
from outbox_tasks.model import Message
from outbox_tasks.text import short


def check(argument: str, value: object, fits: bool, rule: str) -> None:
    if not fits:
        raise InvalidArgument(argument=argument, value=short(value), rule=rule)


def check_app(argument: str, app: object) -> None:
    check(argument, app, isinstance(app, Celery), "must be a Celery app")


def check_task(task: Any) -> None:
    callable_ = isinstance(task, str) or (not isinstance(task, type) and callable(getattr(task, "apply_async", None)))
    check("task", task, callable_, "must be a Celery task, a signature, or the name of a task")


def each_message(messages: Any) -> Iterator[Message]:
    """The messages, each of which is checked as it is read."""
    rule = "must be Message objects, in a list or another iterable"
    check("messages", messages, isinstance(messages, Iterable), rule)
    for message in messages:
        check("messages", message, isinstance(message, Message), rule)
        yield message
