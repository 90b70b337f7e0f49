"""What a message costs PostgreSQL in the storage of today, and in the next one: see docs/storage.md.

One process writes messages of 240 bytes and drains them, in rounds, to a destination that confirms at once. The two
storages take turns on one embedded server. CPU is that of all server processes, vacuum included, in µs a message; WAL
in bytes a message. `--hold` keeps a snapshot open, and a lock on every table as pg_dump has it. `--keys`: the messages
have so many keys.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from uuid import uuid4

import click
import psycopg
from psutil import Process

from bench.fresh import execute, outbox
from bench.relay import cpu_seconds
from bench.report import Figures, Say, bench
from bench.simulate import Slow
from outbox_tasks import sql
from outbox_tasks.relay.drain import drain
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.storage.store import Storage

ROUND, BATCH = 20_000, 1000
SERVER = {"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
TEXT = json.dumps({"note": "x" * 227})

WIDE = """INSERT INTO {schema}.outbox_messages (event_type, destination, key, payload, headers)
SELECT 'order.created', 'orders', CASE WHEN :keys > 0 THEN 'key:' || (n * 7919 + :round) % :keys END,
       convert_to(:text, 'UTF8'), '{"a": "b"}' FROM generate_series(1, :count) n"""


@dataclass
class Side:
    """A storage, and what its rounds took."""

    name: str
    settings: Settings
    store: Store
    write: Callable[[int, int], None]
    server: int
    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def run(self, count: int, keys: int) -> None:
        """Write `count` messages, and drain them."""
        began = self._now()
        for _ in range(0, count, BATCH):
            self.write(BATCH, keys)
        written = self._now()
        sent = drain(self.store, {"orders": Slow(0)}).sent  # type: ignore[arg-type]
        assert sent == count, f"{sent} of {count} sent"
        ended = self._now()
        micro, bytes_ = 1e6 / count, 1 / count
        for column, value in {
            "insert µs": (written[0] - began[0]) * micro,
            "relay µs": (ended[0] - written[0]) * micro,
            "own µs": (ended[1] - written[1]) * micro,
            "insert WAL": (written[2] - began[2]) * bytes_,
            "relay WAL": (ended[2] - written[2]) * bytes_,
            "drained/s": count / (ended[3] - written[3]),
        }.items():
            self.taken[column].append(value)

    def _now(self) -> tuple[float, float, float, float]:
        [[lsn]] = execute(self.settings, "SELECT pg_current_wal_insert_lsn() - '0/0'")
        return cpu_seconds([self.server]), time.process_time(), float(lsn), time.monotonic()


def wide(settings: Settings, server: int) -> Side:
    """The storage of today."""

    def write(count: int, keys: int) -> None:
        execute(settings, WIDE, count=count, keys=keys, text=TEXT, round=int(time.monotonic() * 1000) % 9973)

    return Side("wide", settings, Store.connect(settings), write, server)


def split(settings: Settings, server: int) -> Side:
    """The next storage, in a schema of its own."""
    settings = settings.model_copy(update={"database_schema": f"{settings.database_schema}_next"})
    execute(settings, "CREATE SCHEMA {schema}")
    connection = psycopg.connect(settings.database_url or "", autocommit=True)
    with connection.transaction():
        connection.execute(sql.script("schema.sql", str(settings.database_schema)).encode())
    publish = sql.statement("write/publish.sql", settings.database_schema)

    def write(count: int, keys: int) -> None:
        shift = int(time.monotonic() * 1000) % 9973
        row = {"event_type": "order.created", "destination": "orders", "text": TEXT, "headers": {"a": "b"}}
        row["content_type"] = "application/json"
        rows = [
            {**row, "id": str(uuid4()), **({"key": f"key:{(n * 7919 + shift) % keys}"} if keys else {})}
            for n in range(count)
        ]
        psycopg.RawCursor(connection).execute(publish.text, publish.values({"row": json.dumps(rows)}))

    return Side("next", settings, Storage.connect(settings), write, server)


def held(stack: ExitStack, settings: Settings, sides: list[Side]) -> None:
    """A snapshot that stays open, and the lock that pg_dump has on every table."""
    connection = stack.enter_context(psycopg.connect(settings.database_url or ""))
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    for side in sides:
        schema = side.settings.database_schema
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
        for [name] in names:
            connection.execute(f"LOCK TABLE {schema}.{name} IN ACCESS SHARE MODE".encode())


@bench
@click.option("--messages", default=100_000, show_default=True, help="For each storage.")
@click.option("--hold", is_flag=True, help="A snapshot stays open, and a lock on every table.")
@click.option("--keys", default=0, show_default=True, help="The messages have so many keys.")
@click.option("--only", type=click.Choice(["wide", "next"]), help="One of the two.")
def main(say: Say, messages: int, hold: bool, keys: int, only: str | None) -> list[Figures]:
    """What a message costs PostgreSQL, in both storages."""
    with ExitStack() as stack:
        settings = stack.enter_context(outbox(SERVER, statement_timeout=60))
        with psycopg.connect(settings.database_url or "") as connection:
            server = Process(connection.info.backend_pid).ppid()
        sides = [make(settings, server) for make in (wide, split)]
        sides = [side for side in sides if only in (None, side.name)]
        for side in sides:
            side.run(2 * BATCH, keys)
            side.taken.clear()
        if hold:
            held(stack, settings, sides)
        for done in range(0, messages, ROUND):
            for side in sides:
                side.run(min(ROUND, messages - done), keys)
                say(f"{side.name}: {done + ROUND:,}, {side.taken['drained/s'][-1]:,.0f}/s")
        found = [Figures("a message", {side.name: _row(side.taken) for side in sides})]
        if hold:
            found.append(Figures("drained/s as the messages grow", {side.name: _course(side) for side in sides}))
        for side in sides:
            side.store.close()
        return found


def _row(taken: dict[str, list[float]]) -> dict[str, Any]:
    return {column: round(median(values), 1) for column, values in taken.items()}


def _course(side: Side) -> dict[str, Any]:
    rates = side.taken["drained/s"]
    return {f"{(n + 1) * ROUND:,}": round(rate) for n, rate in enumerate(rates)}
