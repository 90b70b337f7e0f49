"""A value that each process makes for itself, because connections, threads and locks don't survive a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_inherited: list[Any] = []
"""Values of parent processes. They stay alive: to destroy one could close the parent's connection, or wait forever for
a thread that is not in this process."""


class PerProcess(Generic[T]):
    """Holds one value for each process. `make` makes it when the process first asks for it. Any thread may ask.

    A child process never uses its parent's value. It calls `abandon` with it; by default it keeps it and does nothing.
    """

    def __init__(self, make: Callable[[], T], abandon: Callable[[T], object] = _inherited.append) -> None:
        self._make, self._abandon = make, abandon
        self._slots: dict[int, _Slot[T]] = {}

    def get(self) -> T:
        """This process's value. Makes it if there is none."""
        slot = self._slot()
        for value in slot.values:
            return value
        with slot.lock:
            if not slot.values:
                slot.values.append(self._make())
            return slot.values[0]

    @property
    def made(self) -> T | None:
        """This process's value, or None if there is none."""
        return next(iter(self._slot().values), None)

    def take(self) -> T | None:
        """Like `made`, but the value is the caller's from now on: the next `get` makes another one. Never waits."""
        with suppress(IndexError):
            return self._slot().values.pop()
        return None

    def _slot(self) -> _Slot[T]:
        this_pid = os.getpid()
        slot = self._slots.get(this_pid)
        if slot is None:
            slot = self._slots.setdefault(this_pid, _Slot())
            for pid in [pid for pid in list(self._slots) if pid != this_pid]:
                inherited = self._slots.pop(pid, None)  # None: another thread was faster
                for value in inherited.values if inherited else ():
                    self._abandon(value)
        return slot


class _Slot(Generic[T]):
    """A lock of its own for each process: a thread that held the parent's lock at the fork never releases it here."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: list[T] = []
        """The value, if it is made."""
