"""Where Celery lets a supervised run begin and end: `before_start`, `on_replace` and the signal `task_postrun`.

A tracer calls `before_start` inside its own `try`, before anything of the task's own code, and so the hook may raise
`Ignore`. Celery looks for it at the task's class.
"""

from __future__ import annotations

from functools import wraps
from inspect import getattr_static
from typing import Any

from celery import signals

from outbox_tasks.supervised.run import Copy, current, replacing
from outbox_tasks.supervised.supervisor import Supervisor
from outbox_tasks.writing.capture import supervised, wrap


def hook(supervisor: Supervisor) -> None:
    """Add the hooks to the tasks of an app, as its worker starts, before it makes their tracers."""
    wrap()
    for task in supervisor.app.tasks.values():
        kind = type(task)
        if "_outbox_hooked" not in vars(kind):
            kind._outbox_hooked = True
            _hook_class(kind, supervisor)
    signals.task_postrun.connect(_end, weak=False)


def _end(sender: Any = None, state: str | None = None, retval: Any = None, **_: Any) -> None:
    run = current()
    if run is not None and run.request is sender.request:
        try:
            sender.app.outbox_supervisor.end(run, state, retval)
        finally:
            supervised.set(None)


def _hook_class(kind: Any, supervisor: Supervisor) -> None:
    before_start, on_replace = (getattr_static(kind, name) for name in ("before_start", "on_replace"))

    @wraps(kind.before_start)
    def begin_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if Copy.is_ours(vars(request)) and _is_new(request):
            supervisor.begin(self, Copy.read(vars(request)))
        return before_start.__get__(self, kind)(*args, **kwargs)

    @wraps(kind.on_replace)
    def replace(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = current()
        with replacing(run if run is not None and run.request is self.request else None):
            return on_replace.__get__(self, kind)(*args, **kwargs)

    kind.before_start, kind.on_replace = begin_first, replace


def _is_new(request: Any) -> bool:
    """Whether it is not begun yet. A class may call the `before_start` of its base class, which has this hook too."""
    run = current()
    return run is None or run.request is not request
