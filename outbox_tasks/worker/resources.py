"""What the relay's tasks of an app work with: settings, the broker, and the connections of each process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from celery import Celery, bootsteps

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.names import ALL_QUEUES
from outbox_tasks.broker.places import joined
from outbox_tasks.errors import BrokerUnreachable
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.per_process import PerProcess
from outbox_tasks.relay.claim import Pace
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.satellites import satellites
from outbox_tasks.settings import Settings
from outbox_tasks.worker.liveness import Liveness


class Resources:
    """The relay's settings and broker in an app. Each process opens its own store and publishers when it needs them."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self.app = app
        self.broker = Broker(app, settings)
        self.given = settings
        self.liveness = Liveness()
        self.before_close: list[Callable[[], None]] = []
        """Called when this process ends, to write what it still has."""
        self.before_claim: list[Callable[[], None]] = []
        """Called before each claim, by satellites. May raise `DatabaseUnavailable`."""
        self.acts: Runner | None = None
        """Runs people's acts in the background, in the main process of a worker that does the housekeeping."""
        self.crossed = True
        """Whether the table may say that the broker belongs to another outbox."""
        self.database_was_away = True
        """Whether the database may have lost its last commits since a claim of this process last asked."""
        self.pace = Pace()
        self._tasks_may_wait: bool | None = None
        self._store = PerProcess(self._open_store, lambda parents: parents.engine.dispose(close=False))
        self._publishers = PerProcess(lambda: Publishers(self.settings))

    @cached_property
    def settings(self) -> Settings:
        """The given settings. If they name no broker, they get the app's, for `celery://` destinations too. If this app
        supervises the tasks that a destination makes of events, the destination gets `confirm = "run"`, unless it says
        otherwise.

        Don't read this before the app is configured.
        """
        given, conf = self.given, self.app.conf
        url = given.broker_url or joined(conf.broker_write_url) or None
        destinations = dict(given.destinations)
        for name, destination in given.destinations.items():
            changes: dict[str, Any] = {}
            if given.broker_url is None and destination.takes_the_relays_broker:
                tls = {"ssl": conf.broker_use_ssl} if conf.broker_use_ssl else {}
                changes["transport_options"] = {**conf.broker_transport_options, **tls, **destination.transport_options}
            task = destination.option("task") if destination.scheme == "celery" else None
            if task and any(
                each.confirms(self.app, given, destination, task, [destination.queue]) for each in satellites().values()
            ):
                changes["confirm"] = "run"
            destinations[name] = destination.model_copy(update=changes)
        if (url, destinations) == (given.broker_url, given.destinations):
            return given
        return given.replace(broker_url=url, destinations=destinations)

    @property
    def tasks_may_wait(self) -> bool:
        """Whether a task may wait for its time in a worker: see `Broker.prefetch_grows`."""
        if self._tasks_may_wait is None:
            try:
                self._tasks_may_wait = self.broker.prefetch_grows()
            except BrokerUnreachable:
                return False
        return self._tasks_may_wait

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
        return store

    def close(self) -> None:
        """Close the connections of this process."""
        for end in self.before_close:
            end()
        if self.acts is not None:
            self.acts.close()
        for opened in (self._publishers.take(), self._store.take()):
            if opened is not None:
                opened.close()


def serves(app: Celery) -> bool:
    """Whether the worker of this process consumes from any of the relay's queues."""
    return not app.amqp.queues.consume_from.keys().isdisjoint(ALL_QUEUES)


class ConsumerStep(bootsteps.StartStopStep):
    """A part of the consumer of each worker of the relay. It starts with each connection to the broker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        return serves(consumer.app)
