"""`outbox-tasks demo`: the relay at work on a small order application, while everything goes wrong.

Orders are committed with their messages, others are rolled back, the destination drops connections, one message can
never be delivered, and a publish worker is killed while it sends. In the end we count at the destination what arrived.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import redis
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine, create_engine, text

from outbox_tasks.database.connection import migrating
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.demo_destination import FailingProxy
from outbox_tasks.local.demo_report import Report, arrivals_in, report_of
from outbox_tasks.local.demo_shop import Shop
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import Child, signals_as_ctrl_c
from outbox_tasks.local.relay import Relay
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings

GIVE_UP_SECONDS = 120
"""After so long without any progress we count what there is."""

COUNTS = " · ".join(f"{{task.fields[{name}]:,}} {name}" for name in ("committed", "delivered", "retried", "dead"))

# Shorter than in production: here the messages of a killed worker come back within seconds.
TIMES = {
    "OUTBOX_CLAIM_INTERVAL": "0.5", "OUTBOX_STATEMENT_TIMEOUT": "1", "OUTBOX_SEND_TIMEOUT": "1.5",
    "OUTBOX_QUEUE_LEASE": "9", "OUTBOX_BACKOFF_BASE": "0.2",
}  # fmt: skip


def demo(orders: int = 5000, as_json: bool = False) -> int:
    """Run it, print the result to stdout, and return the exit code: 0 if all is as promised."""
    people = Console(stderr=True)
    with signals_as_ctrl_c(), EmbeddedPostgres() as postgres, EmbeddedValkey() as valkey:
        people.print("A database, a broker and a destination that fails have started.")
        destination = FailingProxy(valkey.port)
        settings = _settings(postgres.url, valkey.url, f"redis+stream://{LOOPBACK}:{destination.port}/1/orders")
        with migrating(settings) as connection:
            upgrade(connection, settings.database_schema)
        engine = create_engine(engine_url(postgres.url), isolation_level="AUTOCOMMIT")
        report = _run(settings, engine, destination, f"{valkey.url.removesuffix('/0')}/1", orders, people)
        engine.dispose()
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        report.show(Console())
    return 1 if report.problems or report.not_shown else 0


def _settings(database_url: str, broker_url: str, stream: str) -> Settings:
    """Exactly these settings, for us and our children. Celery's own variables would override them."""
    for name in [name for name in os.environ if name.startswith(("OUTBOX_", "CELERY_"))]:
        del os.environ[name]
    # Many attempts: on a busy machine sends may take too long, and that must not make dead letters.
    destinations = {"orders": {"url": stream, "max_attempts": 1000}}
    os.environ |= {
        **TIMES,
        "OUTBOX_DATABASE_URL": database_url,
        "OUTBOX_BROKER_URL": broker_url,
        "OUTBOX_DESTINATIONS": json.dumps(destinations),
        "OUTBOX_CONFIG": os.devnull,
    }
    return Settings()


def _run(
    settings: Settings, engine: Engine, destination: FailingProxy, stream_url: str, orders: int, people: Console
) -> Report:
    """Take the orders, run the relay until all are delivered, and count."""
    with people.status("Starting the relay …"):
        relay = Relay({}, publishers=2).__enter__()
    try:
        people.print(f"Taking {orders:,} orders, each with a message in its own transaction …", highlight=False)
        began = time.monotonic()
        with Shop(settings, orders) as shop:
            killed = _until_done(relay, shop, engine, destination, orders, people)
        seconds = time.monotonic() - began
    finally:
        with people.status("Stopping the relay, to count what arrived …"):
            relay.stop()
    with redis.Redis.from_url(stream_url, decode_responses=True) as client:
        return report_of(shop, _messages(engine), arrivals_in(client), seconds, killed, destination.failures)


def _until_done(
    relay: Relay, shop: Shop, engine: Engine, destination: FailingProxy, orders: int, people: Console
) -> int | None:
    """Until no message is on its way, or nothing moves for long. In the middle a publish worker is killed: returns how
    many messages it was sending."""
    columns = (BarColumn(bar_width=None), TextColumn(COUNTS), TimeElapsedColumn())
    moved, before, killed = time.monotonic(), None, None
    with Progress(*columns, console=people, expand=True) as bar:
        task = bar.add_task("", total=orders, committed=0, delivered=0, retried=0, dead=0)
        while time.monotonic() < moved + GIVE_UP_SECONDS:
            is_done = shop.done  # asked before we count, or an order might slip in between
            messages = _messages(engine).values()
            counts: dict[str, Any] = {
                "committed": len(shop.committed),
                "delivered": sum(state == "sent" for state, _ in messages),
                "retried": sum(code is not None for state, code in messages if state != "dead"),
                "dead": sum(state == "dead" for state, _ in messages),
            }
            settled = counts["delivered"] + counts["dead"]
            bar.update(task, completed=settled, **counts)
            if is_done and settled == len(messages):
                break
            if counts != before:
                moved, before = time.monotonic(), counts
            if killed is None and counts["delivered"] > 0.4 * orders:
                destination.hold = True
                killed = _kill_one_that_sends(relay, engine, people)
            time.sleep(0.2)
    return killed


def _messages(engine: Engine) -> dict[str, tuple[str, str | None]]:
    """The state and the last error's code of each message, by its id."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id::text, state, last_error_code FROM outbox_all"))
        return {id: (state, code) for id, state, code in rows}


def _kill_one_that_sends(relay: Relay, engine: Engine, people: Console) -> int | None:
    """`kill -9` of a publish worker and its pool, if one sends within a second. Returns how many messages it was
    sending."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        for holder in _sending(engine):
            if (child := _worker(relay, holder)) is None:
                continue
            os.killpg(child.pid, signal.SIGSTOP)  # first, to be sure that it dies in the middle of a send
            if held := _sending(engine).get(holder, 0):
                child.end()
                people.print(f"kill -9 of {child.name}, which was sending; messages in its hands: {held:,}")
                return held
            os.killpg(child.pid, signal.SIGCONT)
        time.sleep(0.002)
    return None


def _sending(engine: Engine) -> dict[str, int]:
    """How many messages each process has begun to send and not settled."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT holder, sum(cardinality(seqs)) FROM outbox_leases WHERE begun_at IS NOT NULL GROUP BY holder")
        )
        return {holder: int(count) for holder, count in rows}


def _worker(relay: Relay, holder: str) -> Child | None:
    """The worker to which a process belongs. A holder is `<host>:<pid>`."""
    with suppress(ProcessLookupError, ValueError):
        group = os.getpgid(int(holder.rpartition(":")[2]))
        return next((child for child in relay if child.pid == group and child.alive), None)
    return None
