"""Apps with `task_always_eager`: Celery runs their tasks where they are called, and the outbox never sees the call."""

from __future__ import annotations

import logging

from celery import Celery

log = logging.getLogger(__name__)

REMEDY = "Unset task_always_eager (in Django CELERY_TASK_ALWAYS_EAGER) wherever tasks are to be stored."


def eager(app: Celery) -> str | None:
    """What an app's setting means, as a sentence; None: it is not eager. This reads the app's configuration."""
    if not app.conf.task_always_eager:
        return None
    return (
        f"The Celery app {app.main or 'default'!r} is eager (task_always_eager): each task runs at once where it is "
        "called, also in a transaction that is rolled back, and is not stored."
    )


def say_if_eager(app: Celery) -> None:
    """Log it, once in a process."""
    if (fact := eager(app)) and not getattr(app, "outbox_said_eager", False):
        app.outbox_said_eager = True
        log.warning("%s %s", fact, REMEDY)
