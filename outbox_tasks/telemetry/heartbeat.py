"""The heartbeat of a worker: its row of outbox_heartbeats.

Celery's event loop ticks. A thread writes the row as long as the loop ticks. So the heartbeat ends if the loop hangs,
and a slow database never holds up the loop.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from celery import signals
from celery.concurrency import solo

from outbox_tasks.broker.names import ALL_QUEUES
from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.database.connection import Database
from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.heartbeats import facts_of
from outbox_tasks.settings import Settings
from outbox_tasks.text import logger
from outbox_tasks.worker.liveness import TICK_SECONDS, Liveness
from outbox_tasks.worker.resources import ConsumerStep, Resources

log = logger(__name__)

BEAT_SECONDS = 5.0
"""Between two heartbeats."""


class HeartbeatStep(ConsumerStep):
    """Starts when a worker begins to consume. Stops when it loses its broker, and starts again afterwards."""

    _timer: Any = None
    _heartbeat: Heartbeat | None = None

    def start(self, consumer: Any) -> None:
        resources: Resources = consumer.app.outbox_relay
        resources.liveness.start(solo=isinstance(consumer.pool, solo.TaskPool))
        self._timer = consumer.timer.call_repeatedly(TICK_SECONDS, resources.liveness.tick)
        if self._heartbeat is None:
            facts = facts_of(consumer, consumer.app.amqp.queues.consume_from.keys() & set(ALL_QUEUES))
            self._heartbeat = Heartbeat(resources.settings, resources.liveness, consumer.hostname, facts)
            self._heartbeat.start()

    def stop(self, consumer: Any) -> None:
        consumer.app.outbox_relay.liveness.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Heartbeat:
    """Writes every few seconds that a worker is alive."""

    def __init__(self, settings: Settings, liveness: Liveness, node: str, facts: dict[str, Any]) -> None:
        self._database = Database.connect(settings)
        self._liveness = liveness
        self._row = {"name": node, "kind": "worker", "ago": 0.0, "facts": facts}
        self._name = {"name": node, "started": facts["started"]}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-heartbeat", daemon=True)

    def start(self) -> None:
        """Called once, in the process that consumes."""
        self._thread.start()
        signals.worker_shutdown.connect(self.stop, weak=False)

    def stop(self, **_: Any) -> None:
        """Called when the worker ends in good order: remove its row. Waits for some seconds at most."""
        self._ended.set()
        self._thread.join(3.0)

    def _run(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            wait = BEAT_SECONDS
            if self._liveness.trouble(BEAT_SECONDS) is None:
                self._do("report/beat.sql", seen=json.dumps([self._row]), late=LATE_SECONDS)
        self._do("report/stopped.sql", **self._name)

    def _do(self, verb: str, **parameters: Any) -> None:
        try:
            self._database.ask(verb, **parameters)
        except OutboxError as error:
            log.debug("no heartbeat: %s", error)
        except Exception:
            log.exception("no heartbeat")
        finally:
            # Keep no connection open meanwhile: a process that the pool forks must not share it.
            self._database.close()
