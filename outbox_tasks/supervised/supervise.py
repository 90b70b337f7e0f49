"""`Outbox.supervise`: adds supervision to an app. It reads nothing of its configuration before its worker starts."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, signals

from outbox_tasks.settings import Settings
from outbox_tasks.supervised.hooks import hook
from outbox_tasks.supervised.supervisor import Supervisor
from outbox_tasks.supervised.watch import Watch

log = logging.getLogger(__name__)


def supervise(app: Celery, settings: Settings) -> Supervisor:
    """Let the workers of `app` run supervised tasks. A second call changes nothing, and returns the first one's
    supervisor."""
    known: Supervisor | None = vars(app).get("outbox_supervisor")
    if known is not None:
        if known.settings != settings:
            log.warning("%r supervises its tasks with other settings already, and keeps those", app)
        return known
    supervisor = app.outbox_supervisor = Supervisor(app, settings)
    watch = Watch(supervisor)

    def prepare(sender: Any = None, **_: Any) -> None:
        if sender.app is app:
            hook(supervisor)
            if supervisor.check():
                watch.listen()

    def close(**_: Any) -> None:
        supervisor.close()

    signals.worker_init.connect(prepare, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
    return supervisor
