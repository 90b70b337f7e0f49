"""Reads of the database that all who watch share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

ANSWERS_KEPT = 100
"""Each answer is the content of one page, and no page is long."""

ERROR_SECONDS = 2.0
"""After this long, a read that failed is tried again."""


@dataclass
class _Answer:
    future: Future[Any] = field(default_factory=Future)
    expires_at: float = inf
    """While the database is being read, the answer does not expire."""


class Looks:
    """The latest answers, by name. A person who asks while another one's read goes on gets the answer of that read.

    Errors are kept too: a database that is gone is not asked by everybody who watches.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}

    def get(self, name: str, read: Callable[[], T], seconds: float) -> T:
        """What `read` returned within the last `seconds`."""
        with self._lock:
            answer = self._answers.get(name)
            if is_new := answer is None or answer.expires_at < time.monotonic():
                answer = _Answer()
                self._keep(name, answer)
        assert answer is not None
        if is_new:
            try:
                answer.future.set_result(read())
            except BaseException as error:
                answer.future.set_exception(error)
                seconds = min(seconds, ERROR_SECONDS)
            answer.expires_at = time.monotonic() + seconds
        result: T = answer.future.result()
        return result

    def forget(self, prefix: str) -> None:
        """Drop the answers whose names begin with this, because somebody has changed something."""
        with self._lock:
            self._answers = {name: answer for name, answer in self._answers.items() if not name.startswith(prefix)}

    def _keep(self, name: str, answer: _Answer) -> None:
        """Add an answer. Those that have expired go, and then those that were added first."""
        now = time.monotonic()
        kept = [pair for pair in self._answers.items() if pair[1].expires_at >= now and pair[0] != name]
        self._answers = {**dict(kept[1 - ANSWERS_KEPT :]), name: answer}
