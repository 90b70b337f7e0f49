"""What the order of each key costs: to drain, to claim and to write, beside messages without a key in the same run.

    python bench/order.py [--messages 200000] [--only drain …] [--json]

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import click
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, text

from outbox_tasks.database.connection import migrating
from outbox_tasks.local import bench
from outbox_tasks.local.processes import Group
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.writing.nudge import broker_nudge

KEYS = 10_000
NONE, HOT, SKEWED = "NULL", "'hot'", f"'order:' || floor({KEYS} * random() ^ 3)"
"""The keys of a backlog, as SQL."""

BATCH, CLAIMS, ROUNDS, WARM = 2_000, 15, 2_000, 100
PATIENCE = 600.0
READ = 10_000
"""Entries of the destination's stream to read at a time."""

BACKLOG = """INSERT INTO outbox_messages (event_type, destination, key, payload)
SELECT 'order.created', 'bench', {key},
       convert_to('{{"id": ' || n || ', "note": "' || repeat('x', 150) || '"}}', 'UTF8')
FROM generate_series(1, :count) n"""

UNTRIGGERED = "SET LOCAL session_replication_role = replica"
"""No trigger: the column's own default numbers the rows, which suffices for a single writer."""

Figures = dict[str, dict[str, Any]]


class Bench(bench.Bench):
    """Like `outbox-tasks bench`, with keys."""

    def empty(self) -> None:
        """Clear up: one phase must not slow down the next."""
        self.stream.delete("bench")
        with self.engine.begin() as connection:
            connection.execute(text("TRUNCATE outbox_messages, outbox_archive"))

    def delivered(self, count: int, key: str) -> dict[str, Any]:
        """The rate at which a committed backlog is delivered, and whether all of it has arrived in order."""
        self.empty()
        with self._relay(bundle_size=100) as workers:
            with self.engine.begin() as connection:
                fill(connection, count, key)
            if (nudge := broker_nudge(self.settings)) is not None:  # as Outbox.publish would
                nudge()
            figures = self._measure(workers, count, lambda: self.stream.xlen("bench") >= count)
            self._wait(self._settled, "everything is settled")
        return {**figures, "wrong": self._wrong(count)}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE:g} s in vain until {what}")
            time.sleep(0.01)

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
            "rows_per_second": round(sum(claimed) / sum(taken)),
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


@contextmanager
def running() -> Iterator[Bench]:
    """The servers, and a migrated outbox."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="outbox-bench-")))
        postgres, valkey = stack.enter_context(EmbeddedPostgres()), stack.enter_context(EmbeddedValkey())
        destination = {"url": valkey.url.replace("redis://", "redis+stream://").rsplit("/", 1)[0] + "/1/bench"}
        settings = Settings(database_url=postgres.url, broker_url=valkey.url, destinations={"bench": destination})
        with migrating(settings) as connection:
            upgrade(connection)
        yield Bench(settings, [postgres.pid, valkey.pid], stack.enter_context(Group()), directory)


def drained(run: Bench, count: int, say: Callable[[str], object]) -> Figures:
    """Without keys before and after: the machine may have become faster or slower in between."""
    say("drain without keys")
    before = run.delivered(count, NONE)
    say("drain with keys")
    keyed = run.delivered(count, SKEWED)
    say("drain without keys again")
    after = run.delivered(count, NONE)
    bare = {name: round((before[name] + after[name]) / 2) for name in before}
    keyed["ratio"] = round(keyed["per_second"] / bare["per_second"], 2)
    spread = [before["per_second"], after["per_second"]]
    return {"without keys": {**bare, "each": spread}, f"{KEYS:,} keys": keyed}


def measured(run: Bench, messages: int, only: tuple[str, ...], say: Callable[[str], object]) -> dict[str, Figures]:
    """The figures of each phase."""

    def hot() -> Figures:
        say("one hot key")
        return {"one hot key": run.delivered(messages // 10, HOT)}

    def claim() -> Figures:
        found: Figures = {}
        for backlog in (messages // 20, messages // 2, messages * 5):
            say(f"claims of {backlog:,}")
            found[f"{backlog:,} due"] = run.claim(backlog)
        return found

    def write() -> Figures:
        say("writers")
        return {"one row, µs": run.single(), f"{messages // 2:,} rows, s": run.bulk(messages // 2)}

    phases = {"drain": lambda: drained(run, messages, say), "hot": hot, "claim": claim, "write": write}
    return {name: phase() for name, phase in phases.items() if name in (only or phases)}


def shown(console: Console, figures: dict[str, Figures]) -> None:
    """A table of each kind of figures."""
    sent = {**figures.get("drain", {}), **figures.get("hot", {})}
    for rows, heading in (
        (sent, "2 publish workers"),
        (figures.get("claim", {}), f"claims of {BATCH:,}"),
        (figures.get("write", {}), "a writer's transaction"),
    ):
        if not rows:
            continue
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        table = Table()
        for name in (heading, *names):
            table.add_column(name.replace("_", " "), justify="left" if name == heading else "right")
        for label, row in rows.items():
            table.add_row(label, *(_cell(row.get(name, "")) for name in names))
        console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return value if isinstance(value, str) else f"{value:,}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", default=200_000, show_default=True, help="Of the backlog that is drained.")
@click.option("--only", multiple=True, type=click.Choice(["drain", "hot", "claim", "write"]), help="Not all of it.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def main(messages: int, only: tuple[str, ...], as_json: bool) -> None:
    """What the order of each key costs."""
    with Console(stderr=True).status("starting") as status, running() as run:
        figures = measured(run, messages, only, status.update)
    if as_json:
        print(json.dumps(figures))
    else:
        shown(Console(), figures)
    sent = {**figures.get("drain", {}), **figures.get("hot", {})}
    if wrong := {name: row["wrong"] for name, row in sent.items() if row["wrong"]}:
        raise click.ClickException(f"missing, or out of order: {wrong}")


if __name__ == "__main__":
    main()
