"""What the doctor examines: the settings, and what they lead to, over connections of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from celery import Celery

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.database.schema import qualified
from outbox_tasks.operating import overview
from outbox_tasks.operating.doctor.finding import Finding, Fine
from outbox_tasks.operating.doctor.live_workers import Worker, ask_workers
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.operating.overview import Destinations
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

T = TypeVar("T")

TIMEOUT = 2.0
"""Seconds that the broker, or a destination, has to answer."""

MARGIN = 1.0
"""Seconds for looking up a name and connecting, beside those for an answer."""

TIME_LIMIT = 8.0
"""Seconds after which no more check begins: people want to see what was found."""

COUNTED = 1_000
"""Messages of a destination and state are counted up to this."""

Reached = Literal["server", "tables", "indexes", "broker", "redis"]
Results = Iterable[Finding | Fine]


class Site:
    """One relay. `app`: the Celery app that it is installed in, if any."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self.settings = settings
        self.installed = app
        self._began = time.monotonic()
        self.slow = False
        """The database is too slow for long checks."""
        self.reached: set[Reached] = set()
        """What has answered."""

    @property
    def timed_out(self) -> bool:
        return time.monotonic() - self._began > TIME_LIMIT

    @property
    def long(self) -> float:
        """Seconds after which a transaction counts as long."""
        return self.settings.stale_after

    @property
    def celery(self) -> str:
        """How a command begins that starts or asks a process of this relay."""
        return f"celery -A {(self.installed.main or '<your app>') if self.installed else 'outbox_tasks'}"

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
            timeout=TIMEOUT,
        )

    @cached_property
    def broker(self) -> Broker:
        """With a short timeout. Raises `BrokerUnreachable`."""
        return Broker(self.app, self.settings, timeout=TIMEOUT)

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
        """The workers that answer on the broker. Raises `BrokerUnreachable`."""
        with self.broker.producer(), self.broker.connection() as connection:
            # A connection of its own: waiting for answers leaves a Redis connection in the middle of a command.
            return ask_workers(self.app, connection)

    @cached_property
    def server(self) -> Any:
        """Its version, our role and more: see doctor/server.sql."""
        return self.look("server")[0]

    @cached_property
    def sessions(self) -> Sequence[Any]:
        """The other sessions of the database: see doctor/sessions.sql."""
        return self.look("sessions")

    def look(self, what: str, **parameters: Any) -> Sequence[Any]:
        """What a verb in sql/doctor finds. Raises `DatabaseUnavailable` or `SchemaMissing`."""
        return self.store.ask(f"doctor/{what}.sql", place=self.settings.database_schema, **parameters)

    def qualified(self, name: str) -> str:
        """The name of a table or index of ours, as a statement takes it."""
        return qualified(self.settings.database_schema, name)

    def close(self) -> None:
        """Close what was opened."""
        if "store" in vars(self):
            self.store.close()
        if "app" in vars(self) and not self.installed:
            self.app.close()


def ask_all(about: Iterable[T], ask: Callable[[T], str | None], silent: str, timeout: float) -> dict[T, str | None]:
    """What is wrong with each, as `ask` says; None: nothing. All are asked at the same time. `silent`: of those that
    gave no answer in time."""
    found: dict[T, str | None] = dict.fromkeys(about, silent)
    answers: queue.SimpleQueue[tuple[T, str | None]] = queue.SimpleQueue()
    for one in found:
        # Looking up a name has no time limit, so a thread that hangs there is left behind.
        threading.Thread(target=lambda one=one: answers.put((one, ask(one))), daemon=True).start()
    deadline = time.monotonic() + timeout + MARGIN
    with suppress(queue.Empty):
        for _ in list(found):
            one, why = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found[one] = why
    return found


@dataclass(frozen=True, eq=False)
class Check:
    """One check."""

    subject: str
    """The heading of its findings."""
    run: Callable[[Site], Results]
    codes: Set[str]
    """The codes of the findings that it may yield."""
    needs: Sequence[Reached] = ()
    """What must have answered, or the check does not run."""
    uses: Sequence[Reached] = ()
    """What it also asks, if that has answered."""
    gives: Sequence[Reached] = ()
    """What it adds to `reached`, if that answers."""
