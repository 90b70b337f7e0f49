"""The relay of an app, as one worker process has it: settings, connections, and the checks at its start."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

from celery import Celery

from outbox_tasks.broker.broker import Broker, same_place
from outbox_tasks.broker.names import QUEUES
from outbox_tasks.broker.pinned import joined
from outbox_tasks.destinations import kind_of
from outbox_tasks.errors import ConfigurationError, DatabaseUnavailable
from outbox_tasks.per_process import PerProcess
from outbox_tasks.redaction import redacted
from outbox_tasks.relay.send import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.processes import alive, holder
from outbox_tasks.settings import CLAIM_QUEUE, PUBLISH_QUEUE, Settings
from outbox_tasks.worker.liveness import Liveness
from outbox_tasks.worker.slots_full import SlotsFull

POOLS = ("prefork", "solo", "threads", "gevent")
"""Not eventlet: its development has ended, and psycopg does not cooperate with it."""

LOOKS = (0.5, 4.0, 10.0)
"""Seconds before each look for processes that are gone. One that has met its time limit is killed a moment later; the
children of a worker that was killed end a little after it; and the server may still run the last statement of a dead
process, whose rows are locked meanwhile."""

log = logging.getLogger(__name__)


class Relay:
    """The settings, and the connections of one worker process: opened when first used, after any fork."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self.app = app
        self.broker = Broker(app, settings)
        self.given = settings
        self.liveness = Liveness()
        self.slots_full = SlotsFull()
        self.before_close: list[Callable[[], None]] = []
        """Called when this process ends, to write what it still has."""
        self.threads = 1
        """How many tasks run at once in this process."""
        self.shaken: float | None = time.monotonic()
        """When a claim of this process last found the database away; None: that has been looked after."""
        self._store = PerProcess(self._open_store, lambda parents: parents.engine.dispose(close=False))
        self._publishers = PerProcess(lambda: Publishers(self.settings))

    @cached_property
    def settings(self) -> Settings:
        """The given settings. If they name no broker, they get the app's, for `celery://` destinations too.

        Don't read this before the app is configured.
        """
        given, conf = self.given, self.app.conf
        url = joined(conf.broker_write_url)
        if given.broker_url is not None or not url:
            return given
        destinations = dict(given.destinations)
        for name, destination in given.destinations.items():
            if destination.takes_the_relays_broker:
                options = {**conf.broker_transport_options, **destination.transport_options}
                destinations[name] = destination.model_copy(update={"transport_options": options})
        return given.replace(broker_url=url, destinations=destinations)

    @property
    def store(self) -> Store:
        """The store of this process. Raises a `Schema…` error when the tables are not of this release."""
        return self._store.get()

    @property
    def publishers(self) -> Publishers:
        """The publishers of this process."""
        return self._publishers.get()

    def _open_store(self) -> Store:
        store = Store.connect(self.settings)
        store.check_version()
        store.traffic.threads = self.threads
        return store

    def check_pool(self, pool: str, concurrency: int) -> None:
        """Called at a worker's start. Raises `ConfigurationError` if the relay can't run in this pool of Celery's."""
        if pool not in POOLS:
            rule = f"the relay's tasks run in the pools {', '.join(POOLS)}"
            raise ConfigurationError(setting="worker_pool", value=pool, rule=rule)
        self.threads = concurrency if pool in ("threads", "gevent") else 1
        if pool != "gevent":
            return
        for name, destination in self.settings.destinations.items():
            if not getattr(kind_of(destination), "green", False):
                rule = (
                    f"it would block: the client for {destination.scheme}:// (destination {name!r}) does not cooperate "
                    "with gevent; take prefork or threads"
                )
                raise ConfigurationError(setting="worker_pool", value=pool, rule=rule)

    def check(self) -> None:
        """Called at a worker's start, before any fork. Raises what would otherwise fail with the first message, but not
        for a database that can't be reached: it may come back, and until then nothing is begun.
        """
        self.broker.check()
        given = self.given.broker_url
        own = getattr(self.app, "pinned_broker", None) or joined(self.app.conf.broker_read_url)
        if given is not None and own and not same_place(given, own):
            rule = (
                f"it is the relay's broker, and the workers of this app take the relay's tasks from {redacted(own)}. "
                "Unset OUTBOX_BROKER_URL, or run the relay's workers and beat as celery -A outbox_tasks"
            )
            raise ConfigurationError(setting="broker_url", value=redacted(given), rule=rule)
        if not self.app.amqp.queues.consume_from.keys().isdisjoint((CLAIM_QUEUE, PUBLISH_QUEUE)):
            self.settings.check_destinations()
        store, publishers = Store.connect(self.settings), Publishers(self.settings)
        try:
            for name in publishers:
                publishers[name]
            store.check_version()
        except DatabaseUnavailable as error:
            log.warning("%s", error)
        finally:
            publishers.close()
            store.close()

    def end_leases_of_the_dead(self, pid: int | None = None) -> None:
        """End the leases of processes that are surely gone: of `pid`, which was one of this worker's pool, and of those
        that published on this host lately. In the background: the worker has to go on meanwhile."""
        threading.Thread(target=self._end_leases, args=(pid,), name="outbox-leases", daemon=True).start()

    def _end_leases(self, pid: int | None) -> None:
        store = Store.connect(self.settings)
        for wait in LOOKS:
            time.sleep(wait)
            with suppress(DatabaseUnavailable):
                gone = store.traffic.dead_neighbours(2 * self.settings.run_lease)
                # Until its parent has seen its end, its number is nobody else's.
                gone |= {holder(pid)} if pid is not None and not alive(pid) else set()
                for name in sorted(gone):
                    if count := store.recall(name):
                        log.warning("the process %s is gone: %d leases end now", name, count)
            # Keep no connection open meanwhile: a process that the pool forks must not share it.
            store.engine.dispose()

    def close(self) -> None:
        """Close the connections of this process."""
        for end in self.before_close:
            end()
        for opened in (self._publishers.take(), self._store.take()):
            if opened is not None:
                opened.close()


def serves(app: Celery) -> bool:
    """Whether the worker of this process consumes from any of the relay's queues."""
    return not app.amqp.queues.consume_from.keys().isdisjoint(QUEUES)
