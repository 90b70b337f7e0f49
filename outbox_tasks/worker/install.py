"""Adds the relay to an application's own Celery app.

Nothing here reads the application's configuration. That would load it, and Django's settings, or a module that the
application names later, may not exist yet. So hooks add everything when Celery itself reads the configuration.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from celery import Celery, signals
from celery.app.amqp import AMQP, Queues
from kombu import Connection
from kombu.utils.imports import symbol_by_name

from outbox_tasks.broker.names import ALL_QUEUES
from outbox_tasks.broker.tls import verified
from outbox_tasks.satellites import satellites
from outbox_tasks.settings import Settings
from outbox_tasks.worker.resources import Resources
from outbox_tasks.worker.schedule import beat_schedule, keep_pace
from outbox_tasks.worker.tasks import register

log = logging.getLogger(__name__)


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
    for each in satellites().values():
        each.install(app, settings)
    if settings.broker_password is not None:
        app.add_defaults({"broker_password": settings.broker_password})
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
