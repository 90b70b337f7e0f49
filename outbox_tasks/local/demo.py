"""`outbox-tasks demo`: the relay at work on a small order application, while everything goes wrong.

Orders are committed with their messages, others are rolled back, the destination drops connections, one message can
never be delivered, and a publish worker is killed while it sends. In the end we count at the destination what arrived.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import redis
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from outbox_tasks.database.engine import engine_url
from outbox_tasks.database.schema import tables
from outbox_tasks.errors import BrokerUnreachable, DatabaseUnavailable
from outbox_tasks.local.demo_app import DESTINATION, Shop
from outbox_tasks.local.demo_destination import FailingProxy
from outbox_tasks.local.demo_report import KilledWorker, RelayCounts, Report, arrivals_in, report_of
from outbox_tasks.local.places import empty_redis, only_these, own_tables
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import signals_as_ctrl_c
from outbox_tasks.local.relay_processes import Relay, Service
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.settings import Settings
from outbox_tasks.text import redacted

PUBLISHERS = 2
PATIENCE = 120.0
"""Seconds without any progress after which we give up."""

KILL_AT = 0.4
"""When this share of the orders is delivered, a publish worker is killed."""

PROGRESS_INTERVAL, KILL_INTERVAL = 0.2, 0.002
COUNTS = " · ".join(f"{{task.fields[{name}]:,}} {name}" for name in ("committed", "delivered", "retried", "dead"))

# Shorter than in production: here the messages of a killed worker come back within seconds.
TIMES = {
    "OUTBOX_CLAIM_INTERVAL": "0.5", "OUTBOX_STATEMENT_TIMEOUT": "1", "OUTBOX_SEND_TIMEOUT": "1.5",
    "OUTBOX_QUEUE_LEASE": "9", "OUTBOX_BACKOFF_BASE": "0.2",
}  # fmt: skip

ATTEMPTS = 1000
"""Many: on a busy machine sends may take too long, and that must not make dead letters."""


def demo(orders: int = 5000, as_json: bool = False) -> int:
    """Run it, print the result to stdout, and return the exit code: 0 if all is as promised."""
    messages = Console(stderr=True)
    with signals_as_ctrl_c(), ExitStack() as stack:
        with messages.status("Starting a database, a broker and a destination that fails …"):
            settings, destination = _prepared(stack)
        result = _run(settings, destination, orders, messages)
    if as_json:
        print(json.dumps(result.json()))
    else:
        result.show(Console())
    return 1 if result.problems or result.not_finished else 0


def _prepared(stack: ExitStack) -> tuple[Settings, FailingProxy]:
    """Servers of its own, or an empty place on those that the environment names; tables, and a destination that fails.
    All of it goes with the stack."""
    name = f"outbox_demo_{secrets.token_hex(4)}"
    database_url = os.environ.get("OUTBOX_DATABASE_URL") or stack.enter_context(EmbeddedPostgres()).url
    given = os.environ.get("OUTBOX_BROKER_URL") or stack.enter_context(EmbeddedValkey()).url
    broker = urlsplit(stack.enter_context(empty_redis(given, "demo", name)))
    destination = FailingProxy(broker.hostname or LOOPBACK, broker.port or 6379)
    login, at, _ = broker.netloc.rpartition("@")
    url = f"redis+stream://{login}{at}{LOOPBACK}:{destination.port}{broker.path}/{name}"
    variables = {
        **TIMES,
        "OUTBOX_DATABASE_URL": database_url,
        "OUTBOX_DATABASE_SCHEMA": name,
        "OUTBOX_BROKER_URL": broker.geturl(),
        "OUTBOX_DESTINATIONS": json.dumps({DESTINATION: {"url": url, "max_attempts": ATTEMPTS}}),
        "OUTBOX_CONFIG": os.devnull,
    }
    stack.enter_context(only_these(variables))
    settings = Settings()
    stack.enter_context(own_tables(settings))
    return settings, destination


def _run(settings: Settings, destination: FailingProxy, orders: int, messages: Console) -> Report:
    """Take the orders, run the relay until all are delivered, and count."""
    database_url, broker_url, schema = map(str, (settings.database_url, settings.broker_url, settings.database_schema))
    engine = create_engine(engine_url(database_url), isolation_level="AUTOCOMMIT")
    try:
        with ExitStack() as stack:
            stack.callback(engine.dispose)
            client = stack.enter_context(redis.Redis.from_url(broker_url, decode_responses=True))
            shop = stack.enter_context(Shop(settings, orders))
            with messages.status("Starting the relay …"):
                relay = stack.enter_context(Relay({}, publishers=PUBLISHERS))
            run = Run(engine, schema, destination, shop, relay, messages)
            seconds = run.until_done(orders)
            with messages.status("Stopping the relay, to count what arrived …"):
                shop.close()
                relay.stop()
                arrivals = arrivals_in(client, schema)
                return report_of(shop, run.counts, arrivals, seconds, run.killed, destination.failures)
    except SQLAlchemyError as error:
        raise DatabaseUnavailable(url=redacted(database_url), reason=str(error).partition("\n")[0]) from error
    except redis.RedisError as error:
        raise BrokerUnreachable(url=redacted(broker_url), reason=error) from error


class Run:
    """Watches over the demo from the first order to the last delivery."""

    def __init__(
        self, engine: Engine, schema: str, destination: FailingProxy, shop: Shop, relay: Relay, messages: Console
    ) -> None:
        self.counts = RelayCounts(engine, schema)
        self.killed: KilledWorker | None = None
        self._destination, self._shop, self._relay, self._engine = destination, shop, relay, engine
        self._messages = tables(schema).messages
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
                now, committed = self.counts.progress(), len(self._shop.committed)
                if (seen := (now, committed)) != last:
                    moved, last = time.monotonic(), seen
                counts: dict[str, Any] = now._asdict()
                self._bar.update(task, completed=now.delivered + now.dead, committed=committed, **counts)
                if taken and not now.unsettled:
                    break
                self._relay.supervise(self._say)
                self._wait_or_kill(PROGRESS_INTERVAL, now.delivered >= KILL_AT * orders)
        return time.monotonic() - start

    def _wait_or_kill(self, seconds: float, in_the_middle: bool) -> None:
        """Wait; in the middle of the orders try meanwhile to kill a publish worker while it sends."""
        until = time.monotonic() + seconds
        if in_the_middle and self.killed is None:
            self._destination.hold = True
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
        query = select(m.c.locked_by, func.count()).where(m.c.begun_at.is_not(None)).group_by(m.c.locked_by)
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
