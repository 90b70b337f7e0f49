"""One look at the database for all who watch."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

T = TypeVar("T")

MOST = 100
"""Looks that are kept. Each is the content of one page, of which none is long."""

OF_ONE, OF_ALL = 2, 4
"""Searches of one person and of all that go on at once: half of the requests that may read the database."""

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
                look = self._found[name] = _Look()
                self._make_room()
        assert look is not None
        if ours:
            try:
                look.answer.set_result(read())
            except BaseException as error:
                look.answer.set_exception(error)
                seconds = min(seconds, AGAIN)
            look.until = time.monotonic() + seconds
        answer: T = look.answer.result()
        return answer

    def forget(self, prefix: str) -> None:
        """Look again for the next who asks for what begins so: somebody has changed something."""
        with self._lock:
            self._found = {name: look for name, look in self._found.items() if not name.startswith(prefix)}

    def _make_room(self) -> None:
        """Keep what counts, and of that the last ones."""
        now = time.monotonic()
        self._found = {name: look for name, look in self._found.items() if look.until >= now}
        while len(self._found) > MOST:
            del self._found[min(self._found, key=lambda name: self._found[name].until)]


class Searches:
    """Those that go on, by person. One more is refused at once: if it waited, others would wait with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: Counter[str] = Counter()

    @contextmanager
    def by(self, person: str) -> Iterator[None]:
        """Raises `HTTPException` if too many go on."""
        with self._lock:
            if self._going[person] >= OF_ONE:
                raise HTTPException(429, f"{OF_ONE} of your searches go on already. Wait for one of them.")
            if self._going.total() >= OF_ALL:
                raise HTTPException(503, "Too many searches go on. It tries again by itself.")
            self._going[person] += 1
        try:
            yield
        finally:
            with self._lock:
                self._going -= Counter([person])


class _Look:
    def __init__(self) -> None:
        self.answer: Future[Any] = Future()
        self.until = float("inf")
        """Until when it counts; while it is read, always."""
