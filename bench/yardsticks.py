"""The relay beside what its parts can do at most, in rounds that take turns.

- *raw Celery*: tasks that do nothing, without and with task events;
- *pgbench*: updates of single rows by primary key, 8 clients, prepared, `synchronous_commit = off`;
- *XADD*: one client writes the messages' fields to a Redis Stream, 100 in a pipeline;
- *txoutbox*, if it is installed (`pip install txoutbox`): two processes that send by a bare RPUSH and keep no order. Of
  several sizes of its batches the fastest counts;
- the relay: a committed backlog, until all of it is in a Redis Stream, by default (*drain*) and with
  `singles = "all"`.

Raw Celery and the relay have two solo workers. Ratios are those of neighbours in a round. The WAL is that of a message
from its write to the archive, without autovacuum.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
from sqlalchemy import text

from bench.order import EVEN, NONE
from bench.relay import AGAINST, OTHER, WARM, WORKERS, Bench, Figure, cpu_seconds, sides
from bench.report import Figures, Say, bench, spread
from outbox_tasks.local.binaries import postgres_programs
from outbox_tasks.model import uuid7

CLIENTS, PIPELINE = 8, 100
UPDATE = "\\set aid random(1, 100000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
XADD, UPDATES, TXOUTBOX = "XADD, pipelines of 100", "pgbench, single-row updates", "txoutbox"
RAW, RAW_EVENTS = "raw Celery", "raw Celery, events"
DRAIN, SINGLES, SINGLES_EVENTS = "relay, drain", "relay, singles", "relay, singles, events"
BATCHES = ((100, 20), (500, 50), (1000, 10))
"""Of txoutbox: messages of a batch, and how many it sends at once."""

TABLE = """INSERT INTO txoutbox (topic, payload)
SELECT 'order.created', convert_to('{"id": ' || n || ', "note": "' || repeat('x', 150) || '"}', 'UTF8')
FROM generate_series(1, :count) AS n"""

AIMS = {
    "drain ÷ raw Celery": "≥ 27",
    "drain ÷ txoutbox": "≥ 3.5",
    "drain ÷ pgbench updates": "≥ 0.6",
    "singles ÷ raw Celery": "≥ 0.85",
    "singles ÷ raw Celery, both with events": "≥ 0.85",
    "WAL bytes a message, no keys": "≤ 900",
    "WAL bytes a message, 10,000 keys": "≤ 1,250",
}


class Yardsticks(Bench):
    """One round after the other on the same servers."""

    def xadd(self, count: int) -> Figure:
        """Entries like the relay's, by one client that does nothing else."""
        payload = b'{"id": 42, "note": "' + b"x" * 150 + b'"}'

        def add() -> None:
            for _ in range(count // PIPELINE):
                with self.stream.pipeline(transaction=False) as pipeline:
                    for _ in range(PIPELINE):
                        fields: dict[Any, Any] = {
                            "ce_id": str(uuid7()), "ce_type": "order.created", "ce_source": "/outbox_tasks",
                            "ce_time": "2026-01-01T00:00:00.000000+00:00", "content_type": "application/json",
                            "data": payload,
                        }  # fmt: skip
                        pipeline.xadd("yardstick", fields)
                    pipeline.execute()

        before, began = _cpu_of_all(), perf_counter()
        add()
        seconds, cpu = perf_counter() - began, _cpu_of_all() - before
        self.stream.delete("yardstick")
        return {"per_second": count / seconds, "cpu_us": cpu / count * 1e6}

    def pgbench(self, seconds: float) -> Figure:
        """Updates of single rows. The clients' CPU counts too."""
        script = self.directory / "update.sql"
        if not script.exists():
            script.write_text(UPDATE)
            self._pgbench("-i", "-q", "-s", "1")
        before = _cpu_of_all()
        options = f"-n -M prepared -c {CLIENTS} -j 2 -T {round(seconds)} -f"
        output = self._pgbench(*options.split(), str(script))
        cpu = _cpu_of_all() - before
        [count] = re.findall(r"number of transactions actually processed: (\d+)", output)
        [rate] = re.findall(r"tps = ([\d.]+) \(without initial", output)
        return {"per_second": float(rate), "cpu_us": cpu / int(count) * 1e6}

    def _pgbench(self, *arguments: str) -> str:
        environment = {**os.environ, "PGOPTIONS": "-c synchronous_commit=off"}
        argv = [str(postgres_programs() / "pgbench"), *arguments, str(self.settings.database_url)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pgbench failed: {done.stderr}")
        return done.stdout

    def txoutbox(self, count: int) -> Figure:
        """Its relay, with the batches that suit it best."""
        return max((self._txoutbox(count, *sizes) for sizes in BATCHES), key=lambda figure: figure["per_second"])

    def _txoutbox(self, count: int, batch: int, at_once: int) -> Figure:
        from txoutbox.adapters.postgres import SCHEMA_SQL

        self.empty()
        with self.engine.begin() as connection:
            connection.execute(text(SCHEMA_SQL.format(table="txoutbox", name="txoutbox")))
            connection.execute(text("TRUNCATE txoutbox"))
            connection.execute(text(TABLE), {"count": WARM})
        program = str(Path(__file__).with_name("txoutbox_relay.py"))
        argv = [sys.executable, program, str(self.settings.database_url), self.stream_url, str(batch), str(at_once)]
        log = self.directory / "txoutbox.log"
        workers = [self.group.start(f"txoutbox{n}", argv, log=log) for n in range(WORKERS)]
        try:
            self.wait_for(lambda: self.stream.llen("txoutbox") >= WARM, "it has sent the first ones")
            with self.engine.begin() as connection:
                connection.execute(text(TABLE), {"count": count})
            return self.measure(workers, count, lambda: self.stream.llen("txoutbox") >= WARM + count)
        finally:
            for worker in workers:
                worker.stop()

    def wal(self, count: int, key: str) -> float:
        """Bytes of WAL a message, from its insert until it is in the archive."""
        self._configure("autovacuum = off")
        with self.relay() as workers:
            self.delivered(workers, WARM, key)
            self.empty()
            self._configure("autovacuum = off")
            before = self._wal()
            self.delivered(workers, count, key)
            after = self._wal()
        self._configure("autovacuum = on")
        return (after - before) / count

    def _configure(self, setting: str) -> None:
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"ALTER SYSTEM SET {setting}"))
            connection.execute(text("SELECT pg_reload_conf()"))
            connection.execute(text("CHECKPOINT"))  # full pages from here on, as in any hour of its life

    def _wal(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")))


def _cpu_of_all() -> float:
    """Seconds of this process and its children: the servers, and clients that have ended."""
    return cpu_seconds([os.getpid()])


Way = Callable[[], Figure]


def turns(runs: dict[str, Yardsticks], messages: int, seconds: float) -> dict[str, Way]:
    """What takes turns in a round."""
    run, few = runs[""], messages // 8
    ways: dict[str, Way] = {XADD: partial(run.xadd, messages), UPDATES: partial(run.pgbench, seconds)}
    if find_spec("txoutbox") is not None:
        ways[TXOUTBOX] = partial(run.txoutbox, messages)
    ways |= {DRAIN + other: partial(one.drain, messages) for other, one in runs.items()}
    for raw, single, events in ((RAW, SINGLES, False), (RAW_EVENTS, SINGLES_EVENTS, True)):
        ways[raw] = partial(run.raw, few, events=events)
        ways |= {single + other: partial(one.drain, few, "all", events=events) for other, one in runs.items()}
    return ways


def figures(measured: dict[str, list[Figure]], others: list[str]) -> dict[str, dict[str, Any]]:
    """The ratios of each round."""

    def ratio(one: str, base: str, what: str = "per_second") -> dict[str, Any]:
        return spread([a[what] / b[what] for a, b in zip(measured[one], measured[base], strict=True)])

    rows: dict[str, dict[str, Any]] = {}
    for other in others:
        pairs = {
            "drain ÷ raw Celery": (DRAIN, RAW), "drain ÷ txoutbox": (DRAIN, TXOUTBOX),
            "drain ÷ pgbench updates": (DRAIN, UPDATES), "drain ÷ XADD": (DRAIN, XADD),
            "singles ÷ raw Celery": (SINGLES, RAW),
            "singles ÷ raw Celery, both with events": (SINGLES_EVENTS, RAW_EVENTS),
        }  # fmt: skip
        rows |= {name + other: ratio(one + other, base) for name, (one, base) in pairs.items() if base in measured}
    if OTHER in others:
        rows["CPU of a drain ÷ other"] = {**ratio(DRAIN, DRAIN + OTHER, "cpu_us"), "aim": "≤ 0.65"}
    return rows


@bench
@click.option("--rounds", default=5, show_default=True, help="How often each takes its turn.")
@click.option("--messages", default=50_000, show_default=True, help="Of a drain; an eighth of it one by one.")
@click.option("--seconds", default=10.0, show_default=True, help="Of pgbench.")
@AGAINST
def main(say: Say, rounds: int, messages: int, seconds: float, against: str | None) -> list[Figures]:
    """The relay beside raw Celery, pgbench, XADD and txoutbox."""
    measured: dict[str, list[Figure]] = defaultdict(list)
    wal: dict[str, dict[str, Any]] = {}
    with sides(Yardsticks, against, shared_buffers="256MB") as runs:
        for turn in range(rounds):
            for name, way in turns(runs, messages, seconds).items():
                say(f"round {turn + 1} of {rounds}: {name}")
                measured[name].append(way())
        for name, key in {"no keys": NONE, "10,000 keys": EVEN}.items():
            for other, run in runs.items():
                say(f"WAL, {name}{other}")
                values = [run.wal(messages // 4, key) for _ in islice(range(rounds), 3)]
                wal[f"WAL bytes a message, {name}{other}"] = spread(values, 0)
    rows = figures(measured, list(runs)) | wal
    for name, aim in AIMS.items():
        rows.get(name, {})["aim"] = aim
    return [Figures("2 publish workers", _rates(measured)), Figures("figure", rows)]


def _rates(measured: dict[str, list[Figure]]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "messages/s": round(median(one["per_second"] for one in each)),
            "rounds": [round(one["per_second"]) for one in each],
            "CPU µs each": round(median(one["cpu_us"] for one in each)),
            "CPU µs, rounds": [round(one["cpu_us"]) for one in each],
        }
        for name, each in measured.items()
    }
