"""The relay in a Celery app: as its own, which `celery -A outbox_tasks` finds, or inside that of an application.

Nothing of `install` reads the application's configuration. That would load it, and Django's settings, or a module that
the application names later, may not exist yet. So hooks add everything when Celery itself reads the configuration.
"""

from __future__ import annotations

import gc
import logging
import sys
from functools import partial
from typing import Any

import click
from celery import Celery, signals
from celery.app.amqp import AMQP, Queues
from kombu import Connection, Queue
from kombu.utils.imports import symbol_by_name

from outbox_tasks.broker.names import ALL_QUEUES, CLAIM_TASK, DRAIN_TASK, FEED_TASK, MAINTAIN_TASK, PUBLISH_TASK
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.broker.tls import verified
from outbox_tasks.errors import ConfigurationError, OutboxError
from outbox_tasks.satellites import satellites
from outbox_tasks.settings import CLAIM_QUEUE, DRAIN_QUEUE, FEED_QUEUE, MAINTAIN_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.telemetry import logs
from outbox_tasks.telemetry.connect import connect
from outbox_tasks.worker.resources import Resources
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
        "beat_scheduler": "outbox_tasks.worker.schedule:Scheduler",
        "beat_max_loop_interval": settings.claim_interval,
    }


def make_app(settings: Settings | None = None) -> PinnedCelery:
    """An app with the relay's tasks and configuration. Raises `ConfigurationError`."""
    settings = settings or Settings()
    if settings.broker_url is None:
        rule = "workers and beat need it; set OUTBOX_BROKER_URL, for example redis://localhost:6379/0"
        raise ConfigurationError(setting="broker_url", value=None, rule=rule)
    made = PinnedCelery("outbox_tasks", broker=settings.broker_url, settings=settings)
    made.conf.update(configuration(settings))
    connect(register(made, settings))
    keep_pace(made)
    logs.set_up(made)

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


def install(app: Celery, settings: Settings) -> Resources:
    """Add the relay's tasks, queues and schedule to `app`. The app's own configuration stays as it is, but its
    connections to the broker verify TLS where it says nothing else.

    Call it before or after the app is configured. A second call changes nothing, and returns the first one's resources.
    A worker checks at its start whether the app's configuration rules out the relay.
    """
    resources: Resources | None = vars(app).get("outbox_relay")
    if resources is not None:
        if resources.given != settings:
            log.warning("%r has an outbox with other settings already, and keeps those", app)
        return resources
    resources = register(app, settings)
    connect(resources)
    logs.quieten_claims()
    for each in satellites().values():
        each.install(app, settings)
    _add_queues(app)
    _add_schedule(app, settings)
    keep_pace(app)
    return resources


def _add_queues(app: Celery) -> None:
    if "amqp" in vars(app):
        _with_our_queues(app.amqp)
    else:
        app.amqp_cls = partial(_amqp, app.amqp_cls)


# Partials of the module's functions: pools that spawn must be able to pickle the app.


def _amqp(kind: Any, app: Celery) -> AMQP:
    return _with_our_queues(symbol_by_name(kind)(app=app))


def _with_our_queues(amqp: AMQP) -> AMQP:
    amqp.queues_cls = partial(_queues, amqp.queues_cls)
    if amqp.Connection is Connection:
        amqp.Connection = verified
    if "queues" in vars(amqp):
        _extend(amqp.queues)
    return amqp


def _queues(kind: Any, *arguments: Any, **keywords: Any) -> Queues:
    return _extend(kind(*arguments, **keywords))


def _extend(queues: Queues) -> Queues:
    """Add ours to the app's queues, or to its default queue if it names none. A worker without -Q serves them all.

    They are made as Celery makes undefined queues that `-Q` names: of the app's queue type, and each on an exchange of
    its own name. The app's default exchange could carry other messages into them.
    """
    for name in ALL_QUEUES:
        if name not in queues:
            queues.select_add(queues.new_missing(name))
    return queues


def _add_schedule(app: Celery, settings: Settings) -> None:
    entries = beat_schedule(settings)

    def add(**_: Any) -> None:
        # In place, as Celery adds periodic tasks: a copy would hide later changes of the app.
        for name, entry in entries.items():
            app.conf.beat_schedule.setdefault(name, entry)

    app.on_after_configure.connect(add, weak=False)
    # Again when beat has imported the app's modules: they may have set another schedule.
    signals.import_modules.connect(add, sender=app, weak=False)
    if app.configured:
        add()


def __getattr__(name: str) -> PinnedCelery:
    """`app`, made when it is first asked for: an import alone needs no settings."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        made = globals()["app"] = make_app()
    except OutboxError as error:
        if click.get_current_context(silent=True) is None:
            raise
        # Celery's command line would print the whole traceback of an import that failed.
        raise SystemExit(f"outbox_tasks: {error}") from None
    return made
