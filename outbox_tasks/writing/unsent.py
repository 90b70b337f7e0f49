"""The results of stored tasks: nobody can wait for one before the commit, because the task is not sent yet."""

from __future__ import annotations

from functools import cache
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from celery.result import AsyncResult

from outbox_tasks.errors import ResultNotThereYet


class _Transaction:
    """A transaction with stored tasks, and the thread that opened it."""

    def __init__(self, opened: Any) -> None:
        self._opened = ref(opened)
        self._thread = get_ident()

    def waits_for_this_thread(self) -> bool:
        """Whether it is open, and only this thread could commit it."""
        opened = self._opened()
        return opened is not None and getattr(opened, "is_active", True) and self._thread == get_ident()


_transactions: WeakKeyDictionary[Any, _Transaction] = WeakKeyDictionary()
"""By the object that `Store` returns: they end together."""

_by_task: WeakValueDictionary[str, _Transaction] = WeakValueDictionary()


def remember(task_id: str | None, opened: Any) -> None:
    """Note that a task is stored in the transaction `opened`: see `Store`."""
    if task_id is not None and opened is not None:
        if opened not in _transactions:
            _transactions[opened] = _Transaction(opened)
        _by_task[task_id] = _transactions[opened]


def refuse_to_wait(result: Any) -> None:
    """Raises `ResultNotThereYet` if the task, or one before it in its chain, is stored in a transaction that this
    thread has open."""
    while result is not None:
        for each in (result, *(getattr(result, "results", None) or ())):
            transaction = _by_task.get(each.id)
            if transaction is not None and transaction.waits_for_this_thread():
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
