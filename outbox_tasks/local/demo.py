"""`outbox-tasks demo`: the relay at work on a small order application, while everything goes wrong.

Orders are committed with their messages, others are rolled back, the destination drops connections, one message can
never be delivered, and a publish worker is killed while it sends. In the end we count at the destination what arrived.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import redis
from rich.console import Console
from sqlalchemy import Engine, create_engine, text

from outbox_tasks.database.connection import migrating
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.demo_report import counted, show, verdict
from outbox_tasks.local.demo_shop import FailingProxy, Shop
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.local.processes import signals_as_ctrl_c
from outbox_tasks.local.relay import Relay, relay_programs
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings

GIVE_UP_SECONDS = 120
"""After so long without any progress we count what there is."""

# Shorter than in production: here the messages of a killed worker come back within seconds.
TIMES = {
    "OUTBOX_CLAIM_INTERVAL": "0.5", "OUTBOX_STATEMENT_TIMEOUT": "1", "OUTBOX_SEND_TIMEOUT": "1.5",
    "OUTBOX_QUEUE_LEASE": "9", "OUTBOX_BACKOFF_BASE": "0.2",
}  # fmt: skip

SENDING = text("""SELECT holder, sum(cardinality(seqs)) FROM outbox_leases
    WHERE begun_at < clock_timestamp() - interval '0.2 s' GROUP BY holder""")
"""Which processes are in the middle of a send that takes long, and of how many messages."""


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
        shop = Shop(settings, orders)
        with Relay({}) as relay:
            with people.status("Starting the relay …"):
                relay.run(*relay_programs(publishers=2))
            people.print(f"Taking {orders:,} orders, each with a message in its own transaction …", highlight=False)
            killed = _until_done(relay, shop, engine, destination, people)
        with redis.Redis(port=valkey.port, db=1, decode_responses=True) as client:
            entries: Any = client.xrange("orders")
        arrived = [fields["ce_id"] for _, fields in entries]
        figures = counted(shop.committed, shop.rolled_back, _messages(engine), arrived)
        figures |= {"failures": destination.failures, "killed": killed}
        engine.dispose()
    if as_json:
        print(json.dumps(figures))
    else:
        show(figures, Console())
    return 1 if verdict(figures) else 0


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


def _until_done(relay: Relay, shop: Shop, engine: Engine, destination: FailingProxy, people: Console) -> int:
    """Take the orders, until no message is on its way, or nothing moves for long. In the middle a publish worker is
    killed: returns how many messages it was sending."""
    moved, before, killed = time.monotonic(), None, 0
    with ThreadPoolExecutor(1) as thread, people.status("") as status:
        try:
            taking = thread.submit(shop.take_orders)
            while time.monotonic() < moved + GIVE_UP_SECONDS:
                is_done = taking.done() and taking.result() is None  # asked first, or an order might slip in between
                counts = counted(shop.committed.copy(), shop.rolled_back, _messages(engine), [])
                counts["delivered"] = counts["committed"] - counts["dead"] - counts["unfinished"]
                shown = ("committed", "delivered", "retried", "dead")
                status.update(" · ".join(f"{counts[name]:,} {name}" for name in shown))
                if is_done and not counts["unfinished"]:
                    break
                if counts != before:
                    moved, before = time.monotonic(), counts
                if not killed and counts["delivered"] > 0.4 * shop.orders:
                    destination.hold = True
                    killed = _kill_one_that_sends(relay, engine, people)
                time.sleep(0.2)
        finally:
            shop.closing.set()
    return killed


def _messages(engine: Engine) -> dict[str, tuple[str, str | None]]:
    """The state and the last error's code of each message, by its id."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT id::text, state, last_error_code FROM outbox_all"))
        return {id: (state, code) for id, state, code in rows}


def _kill_one_that_sends(relay: Relay, engine: Engine, people: Console) -> int:
    """`kill -9` of a publish worker and its pool, if one is met in the middle of a send. Returns how many messages it
    was sending."""
    deadline = time.monotonic() + 1
    with engine.connect() as connection:
        while time.monotonic() < deadline:
            for holder, count in connection.execute(SENDING):
                with suppress(ProcessLookupError, StopIteration):
                    group = os.getpgid(int(holder.rpartition(":")[2]))  # a holder is <host>:<pid>
                    worker = next(child for child in relay if child.pid == group)
                    worker.end()
                    people.print(f"kill -9 of {worker.name}, which was sending; messages in its hands: {count:,}")
                    return int(count)
            time.sleep(0.02)
    return 0
