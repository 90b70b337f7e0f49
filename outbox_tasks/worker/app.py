"""The relay as its own Celery app, which `celery -A outbox_tasks` finds. `worker.install` adds the relay to an
application's app."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Any

import click
from celery import signals
from kombu import Queue

from outbox_tasks.broker.names import ALL_QUEUES, CLAIM_TASK, DRAIN_TASK, FEED_TASK, MAINTAIN_TASK, PUBLISH_TASK
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.errors import ConfigurationError, OutboxError
from outbox_tasks.satellites import satellites
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.worker.schedule import beat_schedule, keep_pace
from outbox_tasks.worker.tasks import register

log = logging.getLogger(__name__)


def configuration(settings: Settings) -> dict[str, Any]:
    """Celery's configuration for the relay's own app."""
    return {
        # A worker outlives any outage of its broker.
        "broker_connection_max_retries": None,
        "broker_connection_retry_on_startup": True,
        # It also outlives refusals of its broker, which may be out of memory or disk, or have become a replica.
        "broker_channel_error_retry": True,
        # A connection to RabbitMQ that died silently is noticed after twice this long; by default after four minutes.
        "broker_heartbeat": 10.0,
        "task_queues": [Queue(name, routing_key=name) for name in ALL_QUEUES],
        # Claims must not wait behind sends. So each has its own queue, and may have its own workers.
        "task_routes": {
            CLAIM_TASK: {"queue": CLAIM_QUEUE},
            PUBLISH_TASK: {"queue": PUBLISH_QUEUE},
            DRAIN_TASK: {"queue": DRAIN_QUEUE},
            MAINTAIN_TASK: {"queue": MAINTAIN_QUEUE},
            FEED_TASK: {"queue": FEED_QUEUE},
        },
        "task_default_queue": MAINTAIN_QUEUE,
        "task_create_missing_queues": False,
        # Only plain data comes from the broker.
        "task_serializer": "json",
        "accept_content": ["json"],
        "enable_utc": True,
        # A worker takes only what it can start now: in a busy worker's memory leases would run out.
        "worker_disable_prefetch": True,
        "worker_prefetch_multiplier": 1,
        # A stopping worker lets its sends end, and gives back what it has not started.
        "worker_soft_shutdown_timeout": settings.hard_time_limit,
        "worker_enable_soft_shutdown_on_idle": True,
        # A killed process reports nothing. Other processes send what it held.
        "worker_lost_wait": 1.0,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "beat_schedule": beat_schedule(settings),
        # In memory: nothing in the schedule needs remembering, and a file can be lost, locked or damaged.
        "beat_scheduler": "celery.beat:Scheduler",
        "beat_max_loop_interval": settings.claim_interval,
    }


def make_app(settings: Settings) -> PinnedCelery:
    """An app with the relay's tasks and configuration. Raises `ConfigurationError`."""
    if settings.broker_url is None:
        rule = "workers and beat need it; set OUTBOX_BROKER_URL, for example redis://localhost:6379/0"
        raise ConfigurationError(setting="broker_url", value=None, rule=rule)
    made = PinnedCelery("outbox_tasks", broker=settings.broker_url, settings=settings)
    made.conf.update(configuration(settings))
    register(made, settings)
    keep_pace(made)
    for each in satellites().values():
        each.own_app(made)

    def tune(sender: Any = None, **_: Any) -> None:
        # Only in workers of this app. An application decides itself about its interpreter.
        if sender.app is made:
            signals.worker_ready.connect(_tune, weak=False)
            signals.worker_process_init.connect(_tune, weak=False)

    signals.worker_init.connect(tune, weak=False)
    return made


def _tune(**_: Any) -> None:
    # What a worker has imported stays for good. Collecting it again and again took a fifth of its time.
    gc.collect()
    gc.freeze()
    # A send waits several times, and a thread with a report to write may run meanwhile. By default that thread keeps
    # the interpreter for 5 ms each time, although the send could go on.
    sys.setswitchinterval(0.0005)


def __getattr__(name: str) -> PinnedCelery:
    """`app`, made when it is first asked for: an import alone needs no settings."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        made = globals()["app"] = make_app(Settings())
    except OutboxError as error:
        if click.get_current_context(silent=True) is None:
            raise
        # Celery's command line would print the whole traceback of an import that failed.
        raise SystemExit(f"outbox_tasks: {error}") from None
    return made
