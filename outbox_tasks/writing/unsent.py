"""The results of stored tasks: nobody can wait for one before the commit, because the task is not sent yet."""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakValueDictionary

from celery.result import AsyncResult

from outbox_tasks.errors import ResultNotThereYet

_transactions: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""By the id of a stored task what `Store` has returned. It ends with the transaction."""


def remember(task_id: str | None, opened: Any) -> None:
    """Note that a task is stored in the transaction `opened`: see `Store`."""
    if task_id is not None and opened is not None:
        _transactions[task_id] = opened


def refuse_to_wait(result: Any) -> None:
    """Raises `ResultNotThereYet` if the task, or one before it in its chain, is stored in an open transaction."""
    while result is not None:
        for each in (result, *(getattr(result, "results", None) or ())):
            opened = _transactions.get(each.id)
            if opened is not None and getattr(opened, "is_active", True):
                raise ResultNotThereYet(task=each.id)
        result = result.parent


class _SubscribesLater:
    """The result of a task in a stored group. It subscribes when somebody asks for it, one by one."""

    on_ready: Any
    supports_native_join = False

    def then(self, callback: Any, on_error: Any = None, weak: bool = False) -> Any:
        """Call back when the result is known to be ready."""
        return self.on_ready.then(callback, on_error)


def subscribing_later(result: AsyncResult) -> Any:
    """`result`, changed so that it asks the result backend for nothing yet."""
    result.__class__ = _later(type(result))  # type: ignore[arg-type]
    return result


@cache
def _later(kind: type[AsyncResult]) -> type[Any]:
    return type(f"Stored{kind.__name__}", (_SubscribesLater, kind), {})
