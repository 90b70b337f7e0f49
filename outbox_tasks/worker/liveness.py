"""How the main process of a worker is doing: whether it consumes, and whether its loop turns."""

from __future__ import annotations

import time
from math import inf

from outbox_tasks.database.activity import LATE

TICK = 2.0
"""Seconds between two ticks of a worker's loop."""


class Liveness:
    """Kept by the loop, looked at by other threads."""

    def __init__(self) -> None:
        self.connected = False
        """Whether it consumes from the broker."""
        self._ticked = time.monotonic()
        self._solo = False

    def start(self, *, solo: bool) -> None:
        """It consumes, and its loop runs the tasks too (`solo`), or leaves them to a pool."""
        self.connected, self._solo = True, solo
        self.tick()

    def stop(self) -> None:
        """It consumes no more: it ends, or has lost its broker."""
        self.connected = False

    def tick(self) -> None:
        """The loop has turned."""
        self._ticked = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the loop last turned while it was connected, or since the start."""
        return time.monotonic() - self._ticked

    def trouble(self, patience: float = LATE) -> str | None:
        """What is wrong with it for more than `patience` seconds, if anything is."""
        age = self.age
        if age <= patience or (self.connected and self._solo and age < _running_for_at_most()):
            return None
        if not self.connected:
            return f"it has been without its broker for {age:.0f} s"
        return f"its loop has not turned for {age:.0f} s"


def _running_for_at_most() -> float:
    """How long what runs now may hold up the loop of a solo pool, in seconds: the longest of the time limits."""
    from celery.worker import state

    try:
        limits = [getattr(request.task, "time_limit", None) or inf for request in state.active_requests]
    except RuntimeError:  # one began while we looked: it turns
        return inf
    return max(limits, default=0.0)
