"""The guard while the application runs: it looks at each call of a task that goes to the broker."""

from __future__ import annotations

import sys
import warnings
from functools import cache, wraps
from types import FrameType
from typing import Any

from celery import Celery, Task

from outbox_tasks.errors import InvalidArgument, SentPastOutbox
from outbox_tasks.guard.transactions import listen, open_transaction
from outbox_tasks.writing.blocks import current
from outbox_tasks.writing.capture import wrap

PASSED_ON = ("asyncio", "celery", "contextlib", "django", "functools", "kombu", "outbox_tasks", "vine")
"""Packages that pass calls of tasks on. The call site is in none of them."""


class SentPastOutboxWarning(UserWarning):
    """A task was sent inside an open transaction, and not through the outbox."""


def guard(app: Celery, mode: str) -> None:
    """See `Outbox.guard`."""
    if mode not in ("warn", "raise"):
        raise InvalidArgument(argument="mode", value=mode, rule='must be "warn" or "raise"')
    warned: set[tuple[str, int]] = set()

    def check(task: str) -> None:
        """If a transaction is open here, warn of a call, once for each call site, or raise `SentPastOutbox`. In a block
        of `direct` it is meant."""
        if (what := open_transaction()) is None or current() is not None:
            return
        file, line = site = _call_site()
        error = SentPastOutbox(task=task, place=f"{file}, line {line}", what=what)
        if mode == "raise":
            raise error
        if site not in warned:
            warned.add(site)
            warnings.warn_explicit(str(error), SentPastOutboxWarning, file, line)

    listen()
    wrap()
    _wrap_eager()
    app.outbox_guard = check


@cache
def _wrap_eager() -> None:
    """An eager app runs a task where it is called, and sends nothing: its calls are looked at, too."""
    apply = Task.apply

    @wraps(apply)
    def check_and_apply(self: Task, *args: Any, **options: Any) -> Any:
        if (check := getattr(self.app, "outbox_guard", None)) is not None and self.app.conf.task_always_eager:
            check(self.name)
        return apply(self, *args, **options)

    Task.apply = check_and_apply


def _call_site() -> tuple[str, int]:
    """The file and line of the application's code that calls the task."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in PASSED_ON:
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("unknown", 0)
