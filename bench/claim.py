"""What 100 messages cost PostgreSQL as the tables fill.

Two outboxes on one server take turns: one that fills, and one that has only the 100 messages. Each row is the median of
40 turns, *÷ empty* that of the ratios of neighbours. CPU is that of the server's process, a message; *deliver* is begin
and settle in bundles of 100. With keys, the 100 messages have 100 keys. With 100 destinations, each has 50 due.
`--deep`: 1M pending and 5M archived. The server is an embedded one with 512 MB of `shared_buffers`, unless
OUTBOX_DATABASE_URL names another; there the bench uses schemas of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from sqlalchemy import text

from bench import storage
from bench.fresh import outbox
from bench.report import Figures, Say, bench
from bench.simulate import Slow, claimed
from outbox_tasks.database.connection import migrating
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

BATCH, TURNS, WARM, LEASED, AT_ONCE = 100, 40, 8, 50_000, 500_000
DESTINATIONS, EACH = 100, 50
NAMES = ("orders", "keyed", *(f"many{n}" for n in range(DESTINATIONS)))
SERVER = {"shared_buffers": "512MB", "max_wal_size": "4GB"}

SENT = """SELECT seq, {schema}.outbox_uuid7() AS id, now() AS created_at, 'order.created' AS event_type,
       'orders' AS destination, CAST(NULL AS text) AS key, CAST(NULL AS jsonb) AS headers, '{}'::bytea AS payload
FROM generate_series(CAST(:first AS bigint), :first + :count - 1) AS seq"""


@dataclass
class Side:
    """An outbox, with a connection that claims and one that delivers."""

    settings: Settings
    claims: Store
    delivers: Store
    schedules: tuple[Path, Path]
    """Where the system counts the CPU of the two processes that serve them."""

    def fill(self, count: int, to: str = "'orders'", **columns: str) -> None:
        """Write so many messages: `to` these destinations, with these other columns, as SQL over their numbers `n`."""
        for done in range(0, count, AT_ONCE):
            with migrating(self.settings) as connection:
                some = min(AT_ONCE, count - done)
                schema = str(self.settings.database_schema)
                storage.write(connection, some, schema, destination=to, text="'{}'", **columns)

    def archive(self, count: int) -> None:
        """Write what was sent yesterday."""
        first = storage.make_day(self.settings, 1) << 32
        for done in range(0, count, AT_ONCE):
            storage.archive(self.settings, SENT, BATCH, first=first + done, count=min(AT_ONCE, count - done))

    def empty(self) -> None:
        """Remove all messages."""
        storage.clear(self.settings)

    def turn(self, shares: dict[str, int]) -> tuple[float, float, float]:
        """Milliseconds of a claim, for 100 messages; its CPU and that of the delivery, in µs a message."""
        cpu, began = self.cpu(), time.perf_counter()
        bundles = claimed(self.claims, shares)
        ms = (time.perf_counter() - began) * 1000
        count = sum(len(bundle.tickets) for bundle in bundles)
        assert count == sum(shares.values()), f"{count} of {sum(shares.values())} claimed"
        for bundle in bundles:
            deliver(self.delivers, dict.fromkeys(shares, Slow(0)), bundle)
        spent = [(after - before) / count for before, after in zip(cpu, self.cpu(), strict=True)]
        return ms * BATCH / count, spent[0], spent[1]

    def cpu(self) -> list[float]:
        """Microseconds; nothing is counted if the server is elsewhere."""
        return [int(found.read_text().split()[0]) / 1000 if found.exists() else 0.0 for found in self.schedules]


Kind = Callable[[Side, int], dict[str, int]]
"""Writes messages in a turn, and says what to claim."""


@contextmanager
def sides() -> Iterator[tuple[Side, Side]]:
    """An outbox that fills, and one that stays empty."""
    known: dict[str, Any] = {"destinations": {name: {"url": "redis+stream://localhost"} for name in NAMES}}
    with outbox(SERVER, **known) as filled, outbox(database_url=filled.database_url, **known) as empty:
        made = []
        for settings in (filled, empty):
            stores = Store.connect(settings), Store.connect(settings)
            made.append(Side(settings, *stores, (schedule(stores[0]), schedule(stores[1]))))
        yield made[0], made[1]
        for one in made:
            one.claims.close()
            one.delivers.close()


def schedule(store: Store) -> Path:
    """Where the system counts the CPU of the server's process of a store."""
    with store.engine.connect() as connection:
        return Path(f"/proc/{connection.scalar(text('SELECT pg_backend_pid()'))}/schedstat")


def few(side: Side, turn: int) -> dict[str, int]:
    """Write 100 messages. Returns what to claim."""
    side.fill(BATCH)
    return {"orders": BATCH}


def keyed(side: Side, turn: int) -> dict[str, int]:
    """The same, with 100 keys that no other message has."""
    side.fill(BATCH, "'keyed'", key=f"'later:' || {turn * BATCH} + n")
    return {"keyed": BATCH}


def spread(side: Side, turn: int) -> dict[str, int]:
    """50 messages to each of 100 destinations."""
    side.fill(EACH * DESTINATIONS, f"'many' || n % {DESTINATIONS}")
    return {f"many{n}": EACH for n in range(DESTINATIONS)}


def compared(one: Side, other: Side, ours: Kind, theirs: Kind | None = None) -> dict[str, Any]:
    """What a claim costs in one outbox, and beside the other, for messages of a kind. `theirs`: that of the other, if
    it differs."""
    taken = []
    for turn in range(TURNS + WARM):
        pair = [side.turn(kind(side, turn)) for side, kind in ((one, ours), (other, theirs or ours))]
        if turn >= WARM:
            taken.append(pair)
    columns = ("claim ms", "claim µs CPU", "deliver µs CPU")
    found: dict[str, Any] = {}
    for n, column in enumerate(columns):
        if median(full[n] for full, _ in taken):
            found[column] = round(median(full[n] for full, _ in taken), 2)
            found["÷ empty" + " " * n] = round(median(full[n] / max(1e-9, bare[n]) for full, bare in taken), 2)
    return found


def measured(say: Say, pending: int, archived: int, keys: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of the table, as the tables fill."""
    with sides() as (full, empty):
        yield "empty", compared(full, empty, few)
        full.fill(LEASED, lease=f"md5(((n - 1) / {BATCH})::text)::uuid", delay="50000")
        yield f"{LEASED:,} leased", compared(full, empty, few)
        say(f"archiving {archived:,}")
        full.archive(archived)
        yield f"… and {archived:,} archived", compared(full, empty, few)
        say(f"writing {pending:,}")
        full.fill(pending)
        yield f"… and {pending:,} pending", compared(full, empty, few)
        say("100 destinations")
        yield f"… from {DESTINATIONS} destinations", compared(full, empty, spread, few)
        say(f"writing {keys:,} keys")
        full.empty()
        full.fill(keys, "'keyed'", key=f"'key:' || floor({keys} * random())")
        yield f"{keys:,} pending with {keys:,} keys", compared(full, empty, keyed)


def full_against_empty(pending: int, archived: int) -> float:
    """How many times as long a claim takes with many leased, and all of these."""
    found = measured(lambda _: None, pending, archived, 0)
    return next(row["÷ empty"] for name, row in found if name.endswith("pending"))  # type: ignore[no-any-return]


@bench
@click.option("--rows", default=500_000, show_default=True, help="Pending messages, and keys.")
@click.option("--archived", type=int, help="Rows of the archive, if not as many.")
@click.option("--deep", is_flag=True, help="1M pending and 5M archived.")
def main(say: Say, rows: int, archived: int | None, deep: bool) -> list[Figures]:
    """A claim of 100 messages and their delivery, as the tables fill."""
    pending, done = (1_000_000, 5_000_000) if deep else (rows, rows if archived is None else archived)
    found: dict[str, dict[str, Any]] = {}
    for name, row in measured(say, pending, done, pending):
        say(f"after: {name}")
        found[name] = row
    return [Figures(f"{BATCH} messages", found)]
