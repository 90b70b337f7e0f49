"""What the order of each key costs: to drain, to claim and to write, beside messages without a key in the same run.

- drain: a committed backlog without keys, then as many messages over 10,000 keys, some of which have far more than
  others, then those without keys again; what has arrived is looked through, for what is missing or out of order;
- hot: a tenth as many messages of one single key;
- claim: 2,000 rows of backlogs over those 10,000 keys, through the store; what was claimed is gone before the next one;
- write: a transaction of one INSERT, and one of many rows, with a key and without. "index alone": with a key, but the
  trigger is off.

Two solo publish workers, as for `outbox-tasks bench`; the servers are embedded ones.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from statistics import median
from typing import Any
from uuid import uuid4

import click
from sqlalchemy import Connection, text

from bench.report import Figures, Say, bench
from outbox_tasks.local.bench import Bench, running
from outbox_tasks.relay.store import Store

KEYS = 10_000
NONE, HOT, SKEWED = "NULL", "'hot'", f"'order:' || floor({KEYS} * random() ^ 3)"
"""The keys of a backlog, as SQL."""

BATCH, CLAIMS, ROUNDS, WARM = 2_000, 15, 2_000, 100
READ = 10_000
"""Entries of the destination's stream to read at a time."""

BACKLOG = """INSERT INTO outbox_messages (event_type, destination, key, payload)
SELECT 'order.created', 'bench', {key},
       convert_to('{{"id": ' || n || ', "note": "' || repeat('x', 150) || '"}}', 'UTF8')
FROM generate_series(1, :count) n"""

UNTRIGGERED = "SET LOCAL session_replication_role = replica"
"""No trigger: the column's own default numbers the rows, which suffices for a single writer."""

Rows = dict[str, dict[str, Any]]


class Keyed(Bench):
    """Like `outbox-tasks bench`, with keys."""

    patience = 600.0

    def empty(self) -> None:
        """Clear up: one phase must not slow down the next."""
        self.stream.delete("bench")
        with self.engine.begin() as connection:
            connection.execute(text("TRUNCATE outbox_messages, outbox_archive"))

    def delivered(self, count: int, key: str) -> dict[str, Any]:
        """The rate at which a committed backlog is delivered, and whether all of it has arrived in order."""
        self.empty()
        with self.relay(bundle_size=100) as workers:
            with self.engine.begin() as connection:
                fill(connection, count, key)
            self.nudge()
            figures = self.measure(workers, count, lambda: self.stream.xlen("bench") >= count)
            self.wait_for(self.is_settled, "everything is settled")
        return {
            "messages/s": figures["per_second"],
            "CPU µs each": figures["cpu_us"],
            "missing or out of order": self._wrong(count),
        }

    def _wrong(self, count: int) -> int:
        """How many messages are missing, or came behind a later one of their key."""
        last: dict[bytes, int] = defaultdict(int)
        seen, wrong, start = set(), 0, "-"
        while entries := self._entries(start):
            for _, fields in entries:
                number, key = json.loads(fields[b"data"])["id"], fields.get(b"ce_partitionkey")
                if key is not None and number not in seen:
                    wrong += number < last[key]
                    last[key] = max(number, last[key])
                seen.add(number)
            start = "(" + entries[-1][0].decode()
        return wrong + count - len(seen)

    def _entries(self, start: str) -> Any:
        return self.stream.xrange("bench", min=start, count=READ)

    def claim(self, backlog: int) -> dict[str, Any]:
        """Claims from a backlog of constant length: claimed rows are deleted, and new ones inserted."""
        self.empty()
        taken, claimed = [], []
        with self.engine.begin() as connection:
            connection.execute(text(UNTRIGGERED))
            fill(connection, backlog, SKEWED)
        store = Store.connect(self.settings)
        for turn in range(CLAIMS + 1):
            lease = str(uuid4())
            started = time.perf_counter()
            rows = store.claim({"bench": BATCH}, lease)
            if turn:  # the first one warms up
                taken.append(time.perf_counter() - started)
                claimed.append(len(rows))
            with self.engine.begin() as connection:
                connection.execute(text(UNTRIGGERED))
                connection.execute(text("DELETE FROM outbox_messages WHERE lease = :lease"), {"lease": lease})
                fill(connection, len(rows), SKEWED)
        store.close()
        return {
            "ms": round(median(taken) * 1000, 1),
            "rows": round(median(claimed)),
            "rows/s": round(sum(claimed) / sum(taken)),
        }

    def single(self) -> dict[str, Any]:
        """Median microseconds of a transaction of one INSERT. The ways take turns."""
        statements = {name: BACKLOG.format(key=key) for name, key in WAYS.items()}
        taken: dict[str, list[float]] = {name: [] for name in WAYS}
        self.empty()
        with self.engine.connect() as connection:
            for turn in range(ROUNDS + WARM):
                for name, statement in statements.items():
                    started = time.perf_counter()
                    connection.execute(text(statement), {"count": 1})
                    connection.commit()
                    if turn >= WARM:
                        taken[name].append((time.perf_counter() - started) * 1e6)
        return {name: round(median(times)) for name, times in taken.items()}

    def bulk(self, count: int) -> dict[str, Any]:
        """Seconds of one transaction of many rows, the median of three. The ways take turns."""
        taken: dict[str, list[float]] = defaultdict(list)
        for _ in range(3):
            for name, key in {**WAYS, "index alone": SKEWED}.items():
                self.empty()
                started = time.perf_counter()
                with self.engine.begin() as connection:
                    if name not in WAYS:
                        connection.execute(text(UNTRIGGERED))
                    fill(connection, count, key)
                taken[name].append(time.perf_counter() - started)
        return {name: round(median(times), 2) for name, times in taken.items()}


WAYS = {"without key": NONE, "with key": SKEWED}


def fill(connection: Connection, count: int, key: str) -> None:
    """Write so many messages, with these keys."""
    connection.execute(text(BACKLOG.format(key=key)), {"count": count})


def drained(run: Keyed, count: int, say: Say) -> Rows:
    """Without keys before and after: the machine may have become faster or slower in between."""
    say("drain without keys")
    before = run.delivered(count, NONE)
    say("drain with keys")
    keyed = run.delivered(count, SKEWED)
    say("drain without keys again")
    after = run.delivered(count, NONE)
    rates = [before["messages/s"], after["messages/s"]]
    keyed["ratio"] = round(keyed["messages/s"] * 2 / sum(rates), 2)
    return {"without keys": before, f"{KEYS:,} keys": keyed, "without keys again": after}


@bench
@click.option("--messages", default=200_000, show_default=True, help="Of the backlog that is drained.")
@click.option("--only", multiple=True, type=click.Choice(["drain", "hot", "claim", "write"]), help="Not all of it.")
def main(say: Say, messages: int, only: tuple[str, ...]) -> list[Figures]:
    """What the order of each key costs."""
    only = only or ("drain", "hot", "claim", "write")
    drains: Rows = {}
    tables = []
    with running(Keyed) as run:
        if "drain" in only:
            drains |= drained(run, messages, say)
        if "hot" in only:
            say("one hot key")
            drains["one hot key"] = run.delivered(messages // 10, HOT)
        if drains:
            tables.append(Figures("2 publish workers", drains))
        if "claim" in only:
            claims: Rows = {}
            for backlog in (messages // 20, messages // 2, messages * 5):
                say(f"claims of {backlog:,}")
                claims[f"{backlog:,} due"] = run.claim(backlog)
            tables.append(Figures(f"claims of {BATCH:,}", claims))
        if "write" in only:
            say("writers")
            writes = {"one row, µs": run.single(), f"{messages // 2:,} rows, s": run.bulk(messages // 2)}
            tables.append(Figures("a writer's transaction", writes))
    if wrong := {
        name: row["missing or out of order"] for name, row in drains.items() if row["missing or out of order"]
    }:
        raise click.ClickException(f"missing, or out of order: {wrong}")
    return tables
