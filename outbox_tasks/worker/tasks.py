"""The relay's Celery tasks, and what happens as their workers start and stop."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, signals

from outbox_tasks.broker.names import MAINTAIN_TASK
from outbox_tasks.errors import BrokerUnreachable, DatabaseUnavailable, MaintainedElsewhere, OutboxError
from outbox_tasks.operating import retention
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.relay.store import Store
from outbox_tasks.satellites import satellites
from outbox_tasks.settings import MAINTAIN_QUEUE, Settings
from outbox_tasks.signals import ran
from outbox_tasks.worker import start_checks
from outbox_tasks.worker.base_task import RelayTask
from outbox_tasks.worker.claim_task import add_claim
from outbox_tasks.worker.drain_task import add_drain
from outbox_tasks.worker.message_checks import CheckMessages
from outbox_tasks.worker.publish_task import add_publish
from outbox_tasks.worker.reconnect import EndFailed, ReconnectSoon
from outbox_tasks.worker.requests import end_leases_of_dead_processes
from outbox_tasks.worker.resources import Resources, serves

log = logging.getLogger(__name__)


def register(app: Celery, settings: Settings) -> Resources:
    """Add the relay's tasks to an app. Does not look at its configuration."""
    resources = app.outbox_relay = Resources(app, settings)
    # Not shared: Celery would add them to every other app of the process too.
    common: dict[str, Any] = {"base": RelayTask, "broker": resources.broker, "shared": False}
    add_claim(resources, common)
    add_publish(resources, common)
    add_drain(resources, common)
    _add_maintain(resources, common)
    for each in satellites().values():
        each.register(resources, common)
    _connect_signals(app, resources)
    app.steps["consumer"].update((CheckMessages, ReconnectSoon))
    app.steps["worker"].add(EndFailed)
    return resources


def _add_maintain(resources: Resources, common: dict[str, Any]) -> None:
    @resources.app.task(name=MAINTAIN_TASK, home=MAINTAIN_QUEUE, once=True, **common)
    def outbox_maintain() -> str:
        try:
            maintained = retention.maintain(resources.store)
        except (DatabaseUnavailable, MaintainedElsewhere) as error:
            log.warning("%s", error)
            return "not done"
        log.info("maintenance: %s", maintained)
        ran.send(sender=resources.app, what="maintain")
        if maintained.more:
            # In small steps, so that claims come in between on a worker that also claims.
            try:
                outbox_maintain.apply_async()
            except BrokerUnreachable as error:
                log.warning("there is more to clear away; beat's next run goes on: %s", error)
        return str(maintained)


def _connect_signals(app: Celery, resources: Resources) -> None:
    def is_ours(sender: Any) -> bool:
        # An application's workers that have nothing to do with the relay start without it too.
        return sender.app is app and serves(app)

    def check(sender: Any = None, **_: Any) -> None:
        if is_ours(sender):
            try:
                start_checks.check(resources)
                start_checks.check_pool(resources, sender)
            except OutboxError as error:
                raise SystemExit(f"outbox_tasks: {error}") from None

    def tell(sender: Any = None, **_: Any) -> None:
        if is_ours(sender):
            names = ", ".join(sorted(resources.settings.destinations)) or "none"
            log.info("%s; destinations: %s", resources.settings.origin, names)
            # It may take the place of a worker that was killed.
            end_leases_of_dead_processes(resources.settings)
            if MAINTAIN_QUEUE in app.amqp.queues.consume_from:
                # Acts that a page has begun go on when its process has ended.
                resources.acts = Runner(Store.connect(resources.settings))
                resources.acts.start()

    def close(**_: Any) -> None:
        resources.close()

    signals.worker_init.connect(check, weak=False)
    signals.worker_ready.connect(tell, weak=False)
    signals.worker_process_shutdown.connect(close, weak=False)
    signals.worker_shutdown.connect(close, weak=False)
