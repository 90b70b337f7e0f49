"""`outbox-tasks demo`: the relay at work on a small order application, while everything goes wrong.

Orders are committed with their messages, others are rolled back, the destination drops connections, one message can
never be delivered, and a publish worker is killed while it sends. In the end we count at the destination what arrived.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack, suppress

from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from outbox_tasks.database.connection import engine_url
from outbox_tasks.database.schema import tables
from outbox_tasks.errors import BrokerUnreachable, DatabaseUnavailable
from outbox_tasks.local.demo_app import Shop
from outbox_tasks.local.demo_report import KilledWorker, RelayCounts, Report, report_of
from outbox_tasks.local.demo_setup import DemoSetup, demo_setup
from outbox_tasks.local.processes import signals_as_ctrl_c
from outbox_tasks.local.relay_processes import Relay, Service
from outbox_tasks.redaction import redacted

PUBLISHERS = 2
PATIENCE = 120.0
"""Seconds without any progress after which we give up."""

KILL_AT = 0.4
"""When this share of the orders is delivered, a publish worker is killed."""

PROGRESS_INTERVAL, KILL_INTERVAL = 0.2, 0.002
COUNTS = " · ".join(f"{{task.fields[{name}]:,}} {name}" for name in ("committed", "delivered", "retried", "dead"))


def demo(orders: int = 5000, as_json: bool = False) -> int:
    """Run it, print the result to stdout, and return the exit code: 0 if all is as promised."""
    messages = Console(stderr=True)
    with signals_as_ctrl_c(), ExitStack() as stack:
        with messages.status("Starting a database, a broker and a destination that fails …"):
            setup = stack.enter_context(demo_setup())
        result = _run(setup, orders, messages)
    if as_json:
        print(json.dumps(result.json()))
    else:
        result.show(Console())
    return 1 if result.problems or result.not_finished else 0


def _run(setup: DemoSetup, orders: int, messages: Console) -> Report:
    """Take the orders, run the relay until all are delivered, and count."""
    engine = create_engine(engine_url(str(setup.settings.database_url)), isolation_level="AUTOCOMMIT")
    try:
        with ExitStack() as stack:
            shop = stack.enter_context(Shop(setup.settings, orders))
            with messages.status("Starting the relay …"):
                relay = stack.enter_context(Relay({}, publishers=PUBLISHERS))
            run = Run(setup, shop, relay, engine, messages)
            seconds = run.until_done(orders)
            with messages.status("Stopping the relay, to count what arrived …"):
                shop.close()
                relay.stop()
                return report_of(setup, shop, run.counts, run.killed, seconds)
    except SQLAlchemyError as error:
        reason = str(error).partition("\n")[0]
        raise DatabaseUnavailable(url=redacted(str(setup.settings.database_url)), reason=reason) from error
    except RedisError as error:
        raise BrokerUnreachable(url=redacted(str(setup.settings.broker_url)), reason=error) from error
    finally:
        engine.dispose()


class Run:
    """Watches over the demo from the first order to the last delivery."""

    def __init__(self, setup: DemoSetup, shop: Shop, relay: Relay, engine: Engine, messages: Console) -> None:
        self.counts = RelayCounts(engine, setup.settings.database_schema)
        self.killed: KilledWorker | None = None
        self._hold = setup.hold
        self._shop = shop
        self._relay = relay
        self._engine = engine
        self._messages = tables(setup.settings.database_schema).messages
        self._bar = Progress(
            BarColumn(bar_width=None), TextColumn(COUNTS), TimeElapsedColumn(), console=messages, expand=True
        )

    def until_done(self, orders: int) -> float:
        """Until no message is on its way, or nothing moves for long. Returns the seconds that it took."""
        task = self._bar.add_task("", total=orders, committed=0, delivered=0, retried=0, dead=0)
        start = time.monotonic()
        moved, last = start, None
        self._say(f"Taking {orders:,} orders, each with a message in its own transaction …")
        self._shop.open()
        with self._bar:
            while time.monotonic() < moved + PATIENCE:
                taken = self._shop.done  # before we count, or an order might slip in between
                now = self.counts.progress()
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
                self._wait_or_kill(PROGRESS_INTERVAL, now.delivered >= KILL_AT * orders)
        return time.monotonic() - start

    def _wait_or_kill(self, seconds: float, in_the_middle: bool) -> None:
        """Wait; in the middle of the orders try meanwhile to kill a publish worker while it sends."""
        until = time.monotonic() + seconds
        if in_the_middle and self.killed is None:
            self._hold()
        while in_the_middle and self.killed is None and time.monotonic() < until:
            self.killed = self._kill_one_that_sends()
            time.sleep(KILL_INTERVAL)
        time.sleep(max(0.0, until - time.monotonic()))

    def _kill_one_that_sends(self) -> KilledWorker | None:
        """`kill -9` of a publish worker and its pool, if one sends just now."""
        for holder in self._sending():
            service = self._service(holder)
            if service is None:
                continue
            # Stop it first, to be sure that it dies in the middle of a send.
            os.killpg(service.child.pid, signal.SIGSTOP)
            if held := self._sending().get(holder, 0):
                service.child.end()
                self._say(f"kill -9 of {service.name} while it is sending, messages in its hands: {held:,}")
                return KilledWorker(service.name, held)
            os.killpg(service.child.pid, signal.SIGCONT)
        return None

    def _sending(self) -> dict[str, int]:
        """How many messages each process has begun to send and not settled."""
        m = self._messages
        query = select(m.c.locked_by, func.count()).where(m.c.begun, m.c.status == "pending").group_by(m.c.locked_by)
        with self._engine.connect() as connection:
            return dict(connection.execute(query).tuples().all())

    def _service(self, holder: str) -> Service | None:
        """The worker to which a process belongs. A holder is `<host>:<pid>`."""
        with suppress(ProcessLookupError, ValueError):
            group = os.getpgid(int(holder.rpartition(":")[2]))
            return next((service for service in self._relay if service.child.pid == group), None)
        return None

    def _say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)
