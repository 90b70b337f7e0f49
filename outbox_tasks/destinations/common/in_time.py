"""Work that no option of a client limits in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_time(work: Callable[[], T], deadline: float) -> T:
    """What the work returns or raises, done in a thread. Raises `TimeoutError` at the deadline: then the thread goes
    on by itself, and nobody hears of its end."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="outbox send", daemon=True).start()
    return result.result(max(0.0, deadline - time.monotonic()))
