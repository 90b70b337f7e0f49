"""What an open snapshot costs: a backlog is drained while a real pg_dump stands still in the middle of the messages.

One process claims, begins and settles bundles; nothing is sent. `pg_dump` holds its snapshot, and its lock on every
table, until the backlog is gone. CPU is that of the two server processes. Blocks are those found or read for a
message of the *first* and the *last* tenth of the backlog: of *ready* by its claim, of *leases* by all that it needs.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click
from sqlalchemy import text

from bench.claim import AT_ONCE, SERVER, Side, schedule
from bench.fresh import execute, outbox
from bench.report import Figures, Say, bench
from bench.simulate import Slow, claimed
from outbox_tasks.local.binaries import PostgresInstall
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

BATCH, PARTS, PATIENCE = 1000, 10, 60.0
STANDS = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pg_dump' AND wait_event = 'ClientWrite'"
BLOCKS = """SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))
            FROM pg_statio_user_tables WHERE schemaname = :of AND relname LIKE :table"""


@contextmanager
def dumping(settings: Settings) -> Iterator[None]:
    """A pg_dump that has read some of the messages, and waits for its reader."""
    program = PostgresInstall(None).binary("pg_dump")
    command = [program, "--schema", str(settings.database_schema), str(settings.database_url)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as dump:
        try:
            deadline = time.monotonic() + PATIENCE
            while not execute(settings, STANDS):
                if dump.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("pg_dump has not come to the messages; are there too few of them?")
                time.sleep(0.05)
            yield
            if dump.poll() is not None:
                raise RuntimeError("pg_dump has ended before the backlog was drained")
        finally:
            dump.kill()


def drained(side: Side, count: int) -> tuple[float, float, float, float]:
    """Drain so many messages: how many a second, CPU and blocks of ready and of leases a message."""
    blocks, cpu, began, done = _blocks(side), sum(side.cpu()), time.perf_counter(), 0
    while done < count:
        bundles = claimed(side.claims, {"orders": BATCH})
        for bundle in bundles:
            deliver(side.delivers, {"orders": Slow(0)}, bundle)
        done += sum(len(bundle.tickets) for bundle in bundles)
    seconds = time.perf_counter() - began
    spent = [(after - before) / done for before, after in zip(blocks, _blocks(side), strict=True)]
    return done / seconds, (sum(side.cpu()) - cpu) / done, spent[0], spent[1]


def _blocks(side: Side) -> tuple[float, float]:
    for store in (side.claims, side.delivers):
        with store.engine.connect() as connection:
            connection.execute(text("SELECT pg_stat_force_next_flush()"))
    time.sleep(0.2)  # a server process writes its figures when it has nothing to do
    tables = ("outbox\\_ready%", "outbox\\_leases%")
    found = [execute(side.settings, BLOCKS, of=side.settings.database_schema, table=one)[0][0] for one in tables]
    return float(found[0]), float(found[1])


def measured(count: int, *, dump: bool) -> dict[str, Any]:
    """A backlog, drained in parts."""
    with outbox(SERVER) as settings:
        stores = Store.connect(settings), Store.connect(settings)
        side = Side(settings, *stores, (schedule(stores[0]), schedule(stores[1])))
        for written in range(0, count, AT_ONCE):
            side.fill(min(AT_ONCE, count - written))
        with dumping(settings) if dump else nullcontext():
            parts = [drained(side, count // PARTS) for _ in range(PARTS)]
        for store in stores:
            store.close()
    rates, cpu, of_ready, of_leases = zip(*parts, strict=True)
    return {
        "messages/s": round(sum(rates) / PARTS),
        "CPU µs": round(sum(cpu) / PARTS, 1),
        "ready, first": round(of_ready[0], 2),
        "ready, last": round(of_ready[-1], 2),
        "leases, first": round(of_leases[0], 2),
        "leases, last": round(of_leases[-1], 2),
    }


@bench
@click.option("--messages", default=1_000_000, show_default=True, help="Messages of the backlog.")
@click.option("--rounds", default=2, show_default=True, help="How often each is measured, in turns.")
def main(say: Say, messages: int, rounds: int) -> list[Figures]:
    """A drain beside a pg_dump that stands still."""
    found: dict[str, dict[str, Any]] = {}
    for n in range(rounds):
        for dump in (False, True):
            name = f"beside pg_dump, {n + 1}" if dump else f"alone, {n + 1}"
            say(name)
            found[name] = measured(messages, dump=dump)
    return [Figures(f"{messages:,} messages", found)]
