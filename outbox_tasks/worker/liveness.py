"""Whether the main process of a worker consumes, and whether its event loop turns."""

from __future__ import annotations

import time
from math import inf

STUCK_SECONDS = 30.0
"""For so long a loop may stand still on a busy machine."""

TICK_SECONDS = 2.0
"""Between two ticks of a worker's loop."""


class Liveness:
    """The event loop writes it. Other threads read it."""

    def __init__(self) -> None:
        self.connected = False
        """Whether it consumes from the broker."""
        self._ticked = time.monotonic()
        self._solo = False

    def start(self, *, solo: bool) -> None:
        """It consumes. Its loop runs the tasks too (`solo`), or leaves them to a pool."""
        self.connected, self._solo = True, solo
        self.tick()

    def stop(self) -> None:
        """It no longer consumes: it ends, or has lost its broker."""
        self.connected = False

    def tick(self) -> None:
        """The loop has turned."""
        self._ticked = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the loop last turned while it was connected, or since the start."""
        return time.monotonic() - self._ticked

    def trouble(self, stuck_seconds: float = STUCK_SECONDS) -> str | None:
        """What has been wrong for more than `stuck_seconds`; None if nothing has."""
        age = self.age
        if age <= stuck_seconds or (self.connected and self._solo and age < _running_for_at_most()):
            return None
        if not self.connected:
            return f"it has been without its broker for {age:.0f} s"
        return f"its loop has not turned for {age:.0f} s"


def _running_for_at_most() -> float:
    """Seconds for which the running tasks may hold up the loop of a solo pool: their longest time limit."""
    from celery.worker import state

    return max((getattr(request.task, "time_limit", None) or inf for request in state.active_requests), default=0.0)
