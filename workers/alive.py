"""A sign of life that a health check can read for next to nothing: ALIVE_FILE names a file kept fresh.

`celery inspect ping` takes 1.5 s of CPU and a broadcast to all workers for each look. Here a worker touches
the file while it is connected to the broker and its loop turns, and beat whenever the broker takes a task,
so a file older than half a minute means: not at work. Without ALIVE_FILE nothing is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.signals import after_task_publish, beat_init

TOUCH_SECONDS = 5
"""Seconds between two touches by a worker."""


def touch(**_: Any) -> None:
    """Make the file fresh."""
    if path := os.environ.get("ALIVE_FILE"):
        Path(path).touch()


class Alive(bootsteps.StartStopStep):
    """Starts with the consumer of tasks and stops when the broker's connection is lost."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    _timer: Any = None

    def start(self, consumer: Any) -> None:
        touch()
        self._timer = consumer.timer.call_repeatedly(TOUCH_SECONDS, touch)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def report_alive(app: Celery) -> None:
    """Have the workers and the beat of `app` keep the file fresh."""
    app.steps["consumer"].add(Alive)
    beat_init.connect(_watch_sends, weak=False)


def _watch_sends(**_: Any) -> None:
    after_task_publish.connect(touch, weak=False)
