"""An application with a Celery app of its own, and habits of its own, that has installed the relay.

Its configuration is loaded late, by name and in a namespace, as Django's is. Its broker is known to it alone.
"""

from __future__ import annotations

import gc
import json
import os
from typing import Any

import redis
from celery import Celery, Task
from kombu import Queue

from outbox_tasks.settings import Settings
from outbox_tasks.worker.install import install

BROKER = os.environ.get("SHOP_BROKER_URL", "")
PREFIX = "shop:"
FROZEN_BY_PYTHON = gc.get_freeze_count()
"""Python 3.12 begins with some objects that its garbage collector skips."""

SETTINGS = {
    "CELERY_BROKER_URL": BROKER,
    "CELERY_BROKER_TRANSPORT_OPTIONS": {"global_keyprefix": PREFIX, "priority_steps": [0, 5], "socket_timeout": 20},
    "CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP": True,
    "CELERY_RESULT_BACKEND": BROKER,
    "CELERY_TASK_IGNORE_RESULT": False,
    "CELERY_TASK_TRACK_STARTED": True,
    "CELERY_TASK_SERIALIZER": "pickle",
    "CELERY_ACCEPT_CONTENT": ["pickle", "json"],
    "CELERY_TASK_COMPRESSION": "gzip",
    "CELERY_TASK_ACKS_LATE": True,
    "CELERY_TASK_REJECT_ON_WORKER_LOST": True,
    "CELERY_TASK_DEFAULT_QUEUE": "shop",
    "CELERY_TASK_DEFAULT_EXCHANGE": "shop",
    "CELERY_TASK_DEFAULT_EXCHANGE_TYPE": "topic",
    "CELERY_TASK_DEFAULT_DELIVERY_MODE": "transient",
    "CELERY_TASK_DEFAULT_PRIORITY": 5,
    "CELERY_TASK_DEFAULT_RATE_LIMIT": "600/m",
    "CELERY_TASK_CREATE_MISSING_QUEUES": False,
    "CELERY_TASK_QUEUES": [Queue("shop", routing_key="shop.#"), Queue("media", routing_key="media.#")],
    "CELERY_TASK_ROUTES": {
        "shop.*": {"queue": "shop", "routing_key": "shop.any"},
        "*": {"queue": "media", "exchange": "shop", "exchange_type": "topic", "routing_key": "media.any"},
    },
    "CELERY_TASK_ANNOTATIONS": {"*": {"time_limit": 60}},
    "CELERY_BEAT_SCHEDULE": {"tick": {"task": "tick", "schedule": 0.5, "args": ({"a", "set"},)}},
    "CELERY_BEAT_SCHEDULER": "celery.beat:Scheduler",
    "CELERY_WORKER_DISABLE_PREFETCH": True,
}


class Stubborn(Task):  # type: ignore[misc]
    """The application's own kind of task."""

    autoretry_for = (Exception,)
    retry_kwargs = {"max_retries": 50, "countdown": 0}  # noqa: RUF012 - as Celery has it


app = Celery("shop", task_cls=Stubborn)
install(app, Settings())
app.config_from_object("tests.acceptance.installed_app:SETTINGS", namespace="CELERY")


@app.task(bind=True, name="tick")
def tick(self: Any, argument: set[str]) -> None:
    """Write down how it was called."""
    assert argument == {"a", "set"}
    _write(self, "ticks")


@app.task(bind=True, name="shop.on_event")
def on_event(self: Any, argument: Any) -> None:
    """The same, of a message's task."""
    _write(self, "events", argument=argument)


def _write(task: Any, name: str, **more: Any) -> None:
    record = {
        "id": task.request.id,
        "routing_key": task.request.delivery_info["routing_key"],
        "late": task.acks_late,
        "frozen": gc.get_freeze_count() > FROZEN_BY_PYTHON,
        **more,
    }
    with redis.Redis.from_url(BROKER) as client:
        client.rpush(name, json.dumps(record))
