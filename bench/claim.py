"""What 100 messages cost PostgreSQL as the tables fill: many leased, a full archive, a backlog, destinations, keys.

Two outboxes on one server take turns: one that fills, and one that has only the 100 messages. Each row is the median of
40 turns, *÷ empty* that of the ratios of neighbours. CPU is that of the server's process, a message; *deliver* is begin
and settle in bundles of 100. With keys, the 100 messages have 100 keys. With 100 destinations, each has 50 due.
`--deep`: 1M pending and 5M archived. The server is an embedded one with 512 MB of `shared_buffers`, unless
OUTBOX_DATABASE_URL names another; there the bench uses schemas of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import click
from sqlalchemy import text

from bench.fresh import execute, outbox
from bench.report import Figures, Say, bench
from bench.simulate import Slow
from outbox_tasks.relay.claim import bundled
from outbox_tasks.relay.deliver import deliver
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

BATCH, TURNS, WARM, LEASED, AT_ONCE = 100, 40, 8, 50_000, 500_000
DESTINATIONS, EACH = 100, 50
NAMES = ("orders", "keyed", *(f"many{n}" for n in range(DESTINATIONS)))
SERVER = {"shared_buffers": "512MB", "max_wal_size": "4GB"}

FILL = """INSERT INTO {schema}.outbox_messages (event_type, destination, key, payload, locked_until, lease)
SELECT 'order.created', :to || CASE WHEN :spread > 0 THEN (n % :spread)::text ELSE '' END,
       CASE WHEN :keys > 0 THEN 'key:' || floor(:keys * random())
            WHEN :first >= 0 THEN 'later:' || lpad((:first + n)::text, 9, '0') END,
       '\\x7b7d', clock_timestamp() + :due * interval '1 second', CAST(:lease AS uuid)
FROM generate_series(1, :count) n"""

ARCHIVE = """INSERT INTO {schema}.outbox_archive (seq, id, event_type, destination, payload, content_type, headers,
                                                  attempts, created_at, state)
SELECT n, {schema}.outbox_uuid7(), 'order.created', 'orders', '\\x7b7d', 'application/json', '{}', 1, now(), 'sent'
FROM generate_series(1, :count) n"""


@dataclass
class Side:
    """An outbox, with a connection that claims and one that delivers."""

    settings: Settings
    claims: Store
    delivers: Store
    schedules: tuple[Path, Path]
    """Where the system counts the CPU of the two processes that serve them."""

    def fill(self, count: int, **values: Any) -> None:
        wanted = {"to": "orders", "spread": 0, "keys": 0, "first": -1, "due": -1, "lease": None, **values}
        for done in range(0, count, AT_ONCE):
            execute(self.settings, FILL, count=min(AT_ONCE, count - done), **wanted)

    def archive(self, count: int) -> None:
        for done in range(0, count, AT_ONCE):
            execute(self.settings, ARCHIVE, count=min(AT_ONCE, count - done))

    def empty(self) -> None:
        execute(self.settings, "TRUNCATE {schema}.outbox_messages")

    def turn(self, shares: dict[str, int]) -> tuple[float, float, float]:
        """Milliseconds of a claim, for 100 messages; its CPU and that of the delivery, in µs a message."""
        lease, cpu, began = str(uuid4()), self._cpu(), time.perf_counter()
        rows = self.claims.claim(shares, lease)
        ms = (time.perf_counter() - began) * 1000
        assert len(rows) == sum(shares.values()), f"{len(rows)} of {sum(shares.values())} claimed"
        for made in bundled(self.settings, rows, lease, spread=1):
            deliver(self.delivers, dict.fromkeys(shares, Slow(0)), made)
        claimed, delivered = (after - before for before, after in zip(cpu, self._cpu(), strict=True))
        return ms * BATCH / len(rows), claimed / len(rows), delivered / len(rows)

    def _cpu(self) -> list[float]:
        """Microseconds; nothing is counted if the server is elsewhere."""
        return [int(found.read_text().split()[0]) / 1000 if found.exists() else 0.0 for found in self.schedules]


@contextmanager
def sides() -> Iterator[tuple[Side, Side]]:
    """An outbox that fills, and one that stays empty."""
    known: dict[str, Any] = {"destinations": {name: {"url": "redis+stream://localhost"} for name in NAMES}}
    with outbox(SERVER, **known) as filled, outbox(database_url=filled.database_url, **known) as empty:
        made = []
        for settings in (filled, empty):
            stores = Store.connect(settings), Store.connect(settings)
            made.append(Side(settings, *stores, (_schedule(stores[0]), _schedule(stores[1]))))
        yield made[0], made[1]
        for one in made:
            one.claims.close()
            one.delivers.close()


def _schedule(store: Store) -> Path:
    with store.engine.connect() as connection:
        return Path(f"/proc/{connection.scalar(text('SELECT pg_backend_pid()'))}/schedstat")


def compared(one: Side, other: Side, few: dict[str, Any], theirs: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a claim of 100 costs in one outbox, and beside the other. `few`: of which kind the messages are; `theirs`:
    those of the other, if they differ."""
    taken = []
    for turn in range(TURNS + WARM):
        pair = []
        for which, kind in ((one, few), (other, theirs or few)):
            many = max(1, kind.get("spread", 0))
            count = EACH * many if many > 1 else BATCH
            which.fill(count, **kind, **({"first": turn * BATCH} if kind["to"] == "keyed" else {}))
            names = [f"{kind['to']}{n}" for n in range(many)] if many > 1 else [kind["to"]]
            pair.append(which.turn(dict.fromkeys(names, count // many)))
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
    few, keyed, many = {"to": "orders"}, {"to": "keyed"}, {"to": "many", "spread": DESTINATIONS}
    with sides() as (full, empty):
        yield "empty", compared(full, empty, few)
        full.fill(LEASED, due=50_000, lease=str(uuid4()))
        yield f"{LEASED:,} leased", compared(full, empty, few)
        say(f"archiving {archived:,}")
        full.archive(archived)
        yield f"… and {archived:,} archived", compared(full, empty, few)
        say(f"writing {pending:,}")
        full.fill(pending)
        yield f"… and {pending:,} pending", compared(full, empty, few)
        say("100 destinations")
        yield f"… from {DESTINATIONS} destinations", compared(full, empty, many, few)
        say(f"writing {keys:,} keys")
        full.empty()
        full.fill(keys, **keyed, keys=keys)
        yield f"{keys:,} pending with {keys:,} keys", compared(full, empty, keyed)


def full_against_empty(pending: int, archived: int) -> float:
    """How many times as long a claim takes with many leased, and all of these."""
    rows = measured(lambda _: None, pending, archived, 0)
    return next(row["÷ empty"] for name, row in rows if name.endswith("pending"))  # type: ignore[no-any-return]


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
