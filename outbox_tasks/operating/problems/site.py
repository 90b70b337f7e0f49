"""What is examined: one relay, as it is at one moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from celery import Celery

from outbox_tasks.broker.broker import Broker
from outbox_tasks.broker.pinned import PinnedCelery
from outbox_tasks.database.schema import qualified
from outbox_tasks.operating import overview
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.operating.overview import Destinations, FeedState
from outbox_tasks.operating.problems.answers import BrokerAnswer, Silence, Worker, ask_workers
from outbox_tasks.operating.problems.problem import Problem
from outbox_tasks.relay.store import Store
from outbox_tasks.satellites import satellites
from outbox_tasks.settings import Settings

T = TypeVar("T")

ANSWER_SECONDS = 2.0
"""Seconds that the broker, a destination or a source has to answer."""

CONNECT_SECONDS = 1.0
"""Seconds for looking up a name and connecting, beside those for an answer."""

Reached = Literal["server", "writes", "tables", "indexes", "counts", "broker", "redis"]
Problems = Iterable[Problem]


class Connections:
    """The connections to one relay's database and broker. They open when they are first used. `app`: the Celery app
    that the relay is installed in, if any: its broker is the relay's."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self.settings = settings
        self.installed = app
        self._asked: Future[BrokerAnswer | Silence] | None = None

    @cached_property
    def store(self) -> Store:
        """Raises `ConfigurationError` for a URL that can't be used."""
        return Store.connect(self.settings)

    @cached_property
    def app(self) -> Celery:
        url = self.settings.broker_url or ""
        return self.installed or PinnedCelery(
            "outbox_tasks.problems", broker=url, settings=self.settings, timeout=ANSWER_SECONDS
        )

    @cached_property
    def broker(self) -> Broker:
        """With a short timeout. Raises `BrokerUnreachable`."""
        return Broker(self.app, self.settings, timeout=ANSWER_SECONDS)

    def ask_broker(self) -> Callable[[], BrokerAnswer | Silence | None]:
        """Begin to ask the broker, in a thread: a broker that hangs must not hold up the rest. The function returned
        gives its answer, or why there is none; None: nobody has said where the broker is."""
        if self.installed is None and self.settings.broker_url is None:
            return lambda: None
        silence = Silence(f"it gave no answer within {ANSWER_SECONDS + CONNECT_SECONDS:g} s")
        reached = threading.Event()
        self._asked = asked = in_thread(lambda: BrokerAnswer.of(self.broker, reached))
        deadline = time.monotonic() + ANSWER_SECONDS + CONNECT_SECONDS

        def answer() -> BrokerAnswer | Silence:
            wait([asked], max(0.0, deadline - time.monotonic()))
            if reached.is_set():
                wait([asked], 3.0)  # it has answered once: it is slow, and not away
            return asked.result() if asked.done() else silence

        return answer

    def close(self) -> None:
        if "store" in vars(self):
            self.store.close()
        if "broker" in vars(self) and (self._asked is None or self._asked.done()):
            self.broker.close()
        if "app" in vars(self) and not self.installed:
            self.app.close()


class Site:
    """One look at a relay. What several checks need is read once."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.settings = connections.settings
        self.installed = connections.installed
        self._began = time.monotonic()
        self.deep = False
        """Whether the doctor looks."""
        self.reached: set[Reached] = set()
        """What has answered."""

    @property
    def timed_out(self) -> bool:
        """Whether no more check begins: people want to see what was found."""
        return time.monotonic() - self._began > 8.0

    @property
    def celery(self) -> str:
        """How a command begins that starts or asks a process of this relay."""
        return f"celery -A {(self.installed.main or '<your app>') if self.installed else 'outbox_tasks'}"

    @property
    def store(self) -> Store:
        """Raises `ConfigurationError`."""
        return self.connections.store

    @property
    def broker(self) -> Broker:
        """Raises `BrokerUnreachable` when it is used."""
        return self.connections.broker

    @cached_property
    def asked_broker(self) -> Callable[[], BrokerAnswer | Silence | None]:
        """The broker is asked from the first use of this on, while other things are looked at."""
        return self.connections.ask_broker()

    @cached_property
    def broker_answer(self) -> BrokerAnswer | Silence | None:
        """What the broker says of itself; None: nobody has said where it is."""
        return self.asked_broker()

    @property
    def broker_facts(self) -> BrokerAnswer:
        """For checks that need the broker."""
        assert isinstance(self.broker_answer, BrokerAnswer)
        return self.broker_answer

    @cached_property
    def destinations(self) -> Destinations:
        """The destinations that are configured, or have messages. Without indexes, counting would read all rows."""
        return overview.destinations(self.store)

    @cached_property
    def heartbeats(self) -> Heartbeats:
        """None where the tables can't be read."""
        return Heartbeats.read(self.store) if "tables" in self.reached else Heartbeats()

    @cached_property
    def feeds(self) -> Sequence[FeedState]:
        return [state for each in satellites().values() for state in each.feeds(self.store)]

    @cached_property
    def workers(self) -> Sequence[Worker]:
        """The workers that answer on the broker. Raises `BrokerUnreachable`."""
        with self.broker.producer(), self.broker.connection() as connection:
            # A connection of its own: waiting for answers leaves a Redis connection in the middle of a command.
            return ask_workers(self.connections.app, connection)

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


def in_thread(ask: Callable[[], T]) -> Future[T]:
    """Ask in a thread that is left behind if it hangs: looking up a name has no time limit. `ask` raises nothing."""
    future: Future[T] = Future()
    threading.Thread(target=lambda: future.set_result(ask()), name="outbox-asked", daemon=True).start()
    return future


@dataclass(frozen=True, eq=False)
class Check:
    """One check."""

    subject: str
    """The heading of its problems."""
    in_order: str
    """What holds if it yields nothing."""
    run: Callable[[Site], Problems]
    codes: Set[str]
    """The codes of the problems that it may yield."""
    needs: Sequence[Reached] = ()
    """What must have answered, or the check does not run."""
    uses: Sequence[Reached] = ()
    """What it also asks, if that has answered."""
    gives: Sequence[Reached] = ()
    """What it adds to `reached`, if that answers."""
    concerns: Callable[[Settings], object] = lambda settings: True
    """Whether a relay with these settings has what it looks at."""
    deep: bool = False
    """Whether only the doctor makes it: it takes long, or asks more than the relay's database and broker."""
