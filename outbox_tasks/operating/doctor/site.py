"""What is examined: the settings, and what they lead to. Every connection is one of the doctor's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from celery import Celery
from sqlalchemy import Executable

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.operating import overview
from outbox_tasks.operating.doctor.finding import Finding, Fine
from outbox_tasks.operating.doctor.live_workers import Worker, called
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.operating.overview import Destinations
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

PATIENCE = 2.0
"""Seconds that the broker, or a destination, has to answer."""

ENOUGH = 8.0
"""Seconds after which nothing more is looked at: whoever looks for a fault wants to hear of what was found."""

COUNTED = 1_000
"""Messages of a destination and a state are counted up to this: enough to tell that there are many."""

Reached = Literal["server", "tables", "indexes", "broker", "redis"]
Results = Iterable[Finding | Fine]


class Site:
    """One relay, from where we are. `app`: the Celery app that it is installed in, if it is."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self.settings = settings
        self.installed = app
        self._began = time.monotonic()
        self.slow = False
        """The database has been found to be so slow that much can't be asked of it."""
        self.reached: set[Reached] = set()
        """What has been found to answer."""

    @property
    def over(self) -> bool:
        """Nothing more is to be looked at."""
        return time.monotonic() - self._began > ENOUGH

    @property
    def long(self) -> float:
        """Seconds that are long for a transaction, as for a message."""
        return self.settings.stale_after

    @cached_property
    def store(self) -> Store:
        """Raises `ConfigurationError` for a URL that can't be used."""
        return Store.connect(self.settings)

    @cached_property
    def app(self) -> Celery:
        """The app whose broker is the relay's."""
        assert self.installed or self.settings.broker_url
        return self.installed or PinnedCelery(
            "outbox_tasks.doctor",
            broker=self.settings.broker_url or "",
            settings=self.settings,
            timeout=PATIENCE,
        )

    @cached_property
    def broker(self) -> Broker:
        """In a hurry. Raises `BrokerUnreachable`."""
        return Broker(self.app, self.settings, timeout=PATIENCE)

    @cached_property
    def destinations(self) -> Destinations:
        """The destinations that are configured, or have messages."""
        return overview.destinations(self.store, COUNTED)

    @cached_property
    def heartbeats(self) -> Heartbeats:
        """None where the tables can't be read."""
        return Heartbeats.read(self.store) if "tables" in self.reached else Heartbeats()

    @cached_property
    def workers(self) -> Sequence[Worker]:
        """Who answers on the broker. Raises `BrokerUnreachable`."""
        with self.broker.producer(), self.broker.connection() as connection:
            # One of its own: whoever waits for answers leaves a connection to Redis in the middle of a command.
            return called(self.app, connection)

    def rows(self, statement: Executable, **parameters: Any) -> Sequence[Any]:
        """What the database answers. Raises `DatabaseUnavailable` or `SchemaMissing`."""
        return self.store.rows(statement, parameters)

    def close(self) -> None:
        """Close what was opened."""
        if "store" in vars(self):
            self.store.close()
        if "app" in vars(self) and not self.installed:
            self.app.close()


@dataclass(frozen=True, eq=False)
class Check:
    """Something to look at."""

    subject: str
    """The title under which people find it."""
    run: Callable[[Site], Results]
    codes: Set[str]
    """Of the findings that it may yield."""
    needs: Sequence[Reached] = ()
    """What must have answered, or there is nothing to look at."""
    uses: Sequence[Reached] = ()
    """What it asks too, where that answers."""
    gives: Sequence[Reached] = ()
    """What it finds to answer, if it does."""
