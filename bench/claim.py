"""What claiming 100 messages costs as the tables fill: with many leased, a full archive, and a backlog.

Each row is the median of 60 claims, and its ratio to that of an otherwise empty table in the same run. The server is an
embedded one, unless OUTBOX_DATABASE_URL names another; there the bench uses a schema of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from uuid import uuid4

import click

from bench.fresh import execute, outbox
from bench.report import Figures, Say, bench
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

BATCH, CLAIMS, LEASED, AT_ONCE = 100, 60, 50_000, 500_000

FILL = """INSERT INTO {schema}.outbox_messages (event_type, destination, payload, locked_until, lease)
SELECT 'order.created', 'orders', '\\x7b7d', clock_timestamp() + :due * interval '1 second', CAST(:lease AS uuid)
FROM generate_series(1, :count)"""

ARCHIVE = """INSERT INTO {schema}.outbox_archive (seq, id, event_type, destination, payload, content_type, headers,
                                                  attempts, created_at, state)
SELECT n, {schema}.outbox_uuid7(), 'order.created', 'orders', '\\x7b7d', 'application/json', '{}', 1, now(), 'sent'
FROM generate_series(1, :count) n"""


def filling(settings: Settings, pending: int, archived: int) -> Iterator[tuple[str, float]]:
    """The milliseconds of a claim as the tables fill."""
    store = Store.connect(settings)
    _claim_ms(settings, store)  # warm up
    execute(settings, "TRUNCATE {schema}.outbox_messages")
    yield "empty table", _claim_ms(settings, store)
    execute(settings, FILL, count=LEASED, due=50_000, lease=str(uuid4()))
    yield f"{LEASED:,} leased", _claim_ms(settings, store)
    for done in range(0, archived, AT_ONCE):
        execute(settings, ARCHIVE, count=min(AT_ONCE, archived - done))
    yield f"… and {archived:,} archived", _claim_ms(settings, store)
    for done in range(0, pending, AT_ONCE):
        execute(settings, FILL, count=min(AT_ONCE, pending - done), due=-1, lease=None)
    yield f"… and {pending:,} pending", _claim_ms(settings, store)
    store.close()


def _claim_ms(settings: Settings, store: Store) -> float:
    """Each claim finds new rows."""
    taken = []
    for _ in range(CLAIMS):
        execute(settings, FILL, count=BATCH, due=-1, lease=None)
        started = time.perf_counter()
        rows = store.claim({"orders": BATCH}, str(uuid4()))
        taken.append((time.perf_counter() - started) * 1000)
        assert len(rows) == BATCH
    return median(taken)


def full_against_empty(pending: int, archived: int) -> float:
    """How many times as long a claim takes with all of these."""
    with outbox() as settings:
        taken = [ms for _, ms in filling(settings, pending, archived)]
    return round(taken[-1] / taken[0], 2)


@bench
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of the backlog.")
@click.option("--archived", type=int, help="Rows of the archive, if not as many.")
def main(say: Say, rows: int, archived: int | None) -> list[Figures]:
    """A claim of 100 messages, as the tables fill."""
    taken: dict[str, float] = {}
    with outbox() as settings:
        for name, ms in filling(settings, rows, rows if archived is None else archived):
            say(f"after: {name}")
            taken[name] = ms
    empty = next(iter(taken.values()))
    return [
        Figures(
            f"claims of {BATCH}", {n: {"ms": round(ms, 2), "ratio": round(ms / empty, 2)} for n, ms in taken.items()}
        )
    ]
