"""Tasks of a Django project. To be imported once Django is configured."""

from __future__ import annotations

from typing import Any

import django

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


class OutOfStock(Exception):
    pass


@task
def add(a: int, b: int) -> int:
    return a + b


@task
async def double(number: int) -> int:
    return 2 * number


@task(takes_context=True, priority=7)
def attempt(context: Any) -> list[Any]:
    return [context.attempt, context.task_result.id]


@task
def echo(value: Any) -> Any:
    return value


"""What `act` does next."""


@task
def fail(name: str) -> None:
    raise OutOfStock(f"no {name}")


@task
def unprintable() -> object:
    return object()


def plain() -> None:
    """No task."""
