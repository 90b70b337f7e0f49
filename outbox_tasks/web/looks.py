"""One look at the database for all who watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 200
"""Looks that are kept. Each is the content of one page."""

AGAIN = 2.0
"""Seconds after which a look that failed is taken again."""


class Looks:
    """What was read lately, by name. Who asks while somebody reads waits for that answer. Errors are kept too: a
    database that is gone is not asked by each who watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, _Look] = {}

    def get(self, name: str, read: Callable[[], T], seconds: float) -> T:
        """What `read` returned within the last `seconds`."""
        with self._lock:
            look = self._found.get(name)
            ours = look is None or look.until < time.monotonic()
            if ours:
                self._make_room()
                look = self._found[name] = _Look()
        assert look is not None
        if ours:
            try:
                look.answer.set_result(read())
            except BaseException as error:
                look.answer.set_exception(error)
                seconds = min(seconds, AGAIN)
            look.until = time.monotonic() + seconds
        found: T = look.answer.result()
        return found

    def forget(self, name: str) -> None:
        """Look again for the next who asks: somebody has changed something."""
        with self._lock:
            self._found.pop(name, None)

    def _make_room(self) -> None:
        if len(self._found) >= MOST:
            now = time.monotonic()
            self._found = {name: look for name, look in self._found.items() if look.until >= now}
        while len(self._found) >= MOST:
            del self._found[next(iter(self._found))]


class _Look:
    def __init__(self) -> None:
        self.answer: Future[Any] = Future()
        self.until = float("inf")
        """Until when it counts; while it is read, always."""
