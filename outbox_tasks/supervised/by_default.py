"""Whether a stored task is supervised if neither its call nor its destination says so.

It is, if it goes to workers that supervise: `install` or `supervise` was called for its app, its destination leads to
the app's broker, and the app knows the task or its queue. Other workers would run the task and tell nobody, so it would
be sent again and again.
"""

from __future__ import annotations

from collections.abc import Collection

from celery import Celery

from outbox_tasks.broker.places import same_place
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination


def by_default(app: Celery, settings: Settings, destination: Destination, task: str, queues: Collection[str]) -> bool:
    """`settings`: those of the process that stores or sends the task. `queues`: those that the task may go to."""
    supervisor = vars(app).get("outbox_supervisor")
    if supervisor is None or destination.confirm is not None or _outbox(supervisor.settings) != _outbox(settings):
        return False
    own = supervisor.broker
    return same_place(destination.option("broker") or settings.broker_url or own, own) and knows(app, task, queues)


def knows(app: Celery, task: str, queues: Collection[str]) -> bool:
    """Whether the task or one of its queues is the app's own. An app may also call a task of another application."""
    if task in app.tasks:
        return True
    own = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()} | {app.conf.task_default_queue}
    return not own.isdisjoint(queues)


def _outbox(settings: Settings) -> tuple[str | None, str | None]:
    return settings.database_url, settings.database_schema
