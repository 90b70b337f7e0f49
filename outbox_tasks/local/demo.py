"""`outbox-tasks demo`: the relay at work on a small order application, with everything going wrong that may.

Orders are committed with their messages and others rolled back, the destination drops connections, one
message can never be delivered, and a publish worker is killed while it is sending. What arrived is counted at
the destination.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from outbox_tasks.database.connection import engine_url
from outbox_tasks.database.schema import tables
from outbox_tasks.errors import BrokerUnreachable, DatabaseUnavailable
from outbox_tasks.local.demo_app import Shop
from outbox_tasks.local.demo_report import Books, Casualty, Report, counted
from outbox_tasks.local.demo_surroundings import Surroundings, surroundings
from outbox_tasks.local.supervised import Relay, Service
from outbox_tasks.redaction import redacted

PUBLISHERS = 2
PATIENCE = 120.0
"""Seconds without any progress after which it is given up."""

KILL_AT = 0.4
"""The share of the orders that is delivered when a publish worker is killed."""

LOOK_INTERVAL, HUNT_INTERVAL = 0.2, 0.002
COUNTS = " · ".join(f"{{task.fields[{name}]:,}} {name}" for name in ("committed", "delivered", "retried", "dead"))


def demo(orders: int = 5000, as_json: bool = False) -> int:
    """Run it, print the result to stdout, and return the exit code: 0 if all is as promised."""
    messages = Console(stderr=True)
    with _sigterm_as_ctrl_c(), ExitStack() as stack:
        with messages.status("Starting a database, a broker and a destination that fails …"):
            place = stack.enter_context(surroundings())
        result = _run(place, orders, messages)
    if as_json:
        print(json.dumps(result.json()))
    else:
        result.show(Console())
    return 1 if result.problems or result.not_finished else 0


def _run(place: Surroundings, orders: int, messages: Console) -> Report:
    """The part between the start and the end of the surroundings."""
    engine = create_engine(engine_url(str(place.settings.database_url)), isolation_level="AUTOCOMMIT")
    try:
        with ExitStack() as stack:
            shop = stack.enter_context(Shop(place.settings, orders))
            with messages.status("Starting the relay …"):
                relay = stack.enter_context(Relay({}, publishers=PUBLISHERS))
            run = Run(place, shop, relay, engine, messages)
            seconds = run.until_done(orders)
            with messages.status("Stopping the relay, to count what arrived …"):
                shop.close()
                relay.stop()
                return counted(place, shop, run.books, run.casualty, seconds)
    except SQLAlchemyError as error:
        reason = str(error).partition("\n")[0]
        raise DatabaseUnavailable(url=redacted(str(place.settings.database_url)), reason=reason) from error
    except RedisError as error:
        raise BrokerUnreachable(url=redacted(str(place.settings.broker_url)), reason=error) from error
    finally:
        engine.dispose()


class Run:
    """Watches over the demo from the first order to the last delivery."""

    def __init__(self, place: Surroundings, shop: Shop, relay: Relay, engine: Engine, messages: Console) -> None:
        self.books = Books(engine, place.settings.database_schema)
        self.casualty: Casualty | None = None
        self._hold = place.hold
        self._shop = shop
        self._relay = relay
        self._engine = engine
        self._begun = tables(place.settings.database_schema).messages
        self._bar = Progress(
            BarColumn(bar_width=None), TextColumn(COUNTS), TimeElapsedColumn(), console=messages, expand=True
        )

    def until_done(self, orders: int) -> float:
        """Until nothing is on its way any more, or time is up. Returns the seconds that it took."""
        task = self._bar.add_task("", total=orders, committed=0, delivered=0, retried=0, dead=0)
        start = time.monotonic()
        moved, last = start, None
        self._say(f"Taking {orders:,} orders, each with a message in its own transaction …")
        self._shop.open()
        with self._bar:
            while time.monotonic() < moved + PATIENCE:
                taken = self._shop.done  # before we look at the books, or an order might slip in between
                now = self.books.progress()
                if (seen := (now, len(self._shop.committed))) != last:
                    moved, last = time.monotonic(), seen
                self._bar.update(
                    task,
                    completed=now.delivered + now.dead,
                    committed=len(self._shop.committed),
                    delivered=now.delivered,
                    retried=now.retried,
                    dead=now.dead,
                )
                if taken and not now.unsettled:
                    break
                self._relay.supervise(self._say)
                self._hunt(LOOK_INTERVAL, now.delivered >= KILL_AT * orders)
        return time.monotonic() - start

    def _hunt(self, seconds: float, in_the_middle: bool) -> None:
        """Spend this time, if it is time for that, on catching a publish worker while it is sending."""
        until = time.monotonic() + seconds
        if in_the_middle and self.casualty is None:
            self._hold()
        while in_the_middle and self.casualty is None and time.monotonic() < until:
            self.casualty = self._killed()
            time.sleep(HUNT_INTERVAL)
        time.sleep(max(0.0, until - time.monotonic()))

    def _killed(self) -> Casualty | None:
        """`kill -9` of a publish worker, with its pool, if one is sending just now."""
        for holder in self._sending():
            service = self._service(holder)
            if service is None:
                continue
            # Held still first, to be sure that it is in the middle of a send when it dies.
            os.killpg(service.child.pid, signal.SIGSTOP)
            if held := self._sending().get(holder, 0):
                service.child.end()
                self._say(f"kill -9 of {service.name} while it is sending, messages in its hands: {held:,}")
                return Casualty(service.name, held)
            os.killpg(service.child.pid, signal.SIGCONT)
        return None

    def _sending(self) -> dict[str, int]:
        """How many messages each holder has begun to send and not settled."""
        m = self._begun
        query = select(m.c.locked_by, func.count()).where(m.c.begun, m.c.status == "pending").group_by(m.c.locked_by)
        with self._engine.connect() as connection:
            return dict(connection.execute(query).tuples().all())

    def _service(self, holder: str) -> Service | None:
        """The worker that a holder's process belongs to."""
        with suppress(ProcessLookupError, ValueError):
            group = os.getpgid(int(holder.rpartition(":")[2]))
            return next((service for service in self._relay if service.child.pid == group), None)
        return None

    def _say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Also who is asked to stop politely leaves nothing behind, in other people's database least of all."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
