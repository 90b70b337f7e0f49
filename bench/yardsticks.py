"""The relay beside what its parts can do at most, in rounds that take turns.

- *raw Celery*: tasks that do nothing;
- *pgbench*: updates of single rows by primary key, 8 clients, prepared, `synchronous_commit = off`;
- *XADD*: one client writes the messages' fields to a Redis Stream, 100 in a pipeline;
- the relay *in bundles*, *one by one* (`bundle_size = 1`) and *per message* (`profile = "per-message"`): a committed
  backlog, until all of it is in a Redis Stream.

Raw Celery and the relay have two solo workers, no task events (but for *per message*) and log level WARNING. CPU is
that of all processes, servers included. Ratios are those of neighbours in a round. The WAL is without
autovacuum.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
from sqlalchemy import text

from bench import claim
from bench.relay import Bench, cpu_seconds, running
from bench.report import Figures, Say, bench, spread
from outbox_tasks.local.binaries import PostgresInstall
from outbox_tasks.model import uuid7
from outbox_tasks.settings.profile import PER_MESSAGE

CLIENTS, PIPELINE = 8, 100
OTHER = "the other release, in bundles"
UPDATE = "\\set aid random(1, 100000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"

AIMS = {
    "bundles ÷ raw Celery": "≥ 12",
    "bundles ÷ pgbench updates": "≥ 0.6",
    "CPU a message ÷ the other release's": "≤ 0.6",
    "claim of 100, full ÷ empty table": "≤ 1.2",
    "WAL bytes a message": "≤ 2,000",
    "one by one ÷ raw Celery": "≥ 1",
}


class Yardsticks(Bench):
    """One round after the other on the same servers."""

    patience = 600.0

    def xadd(self, count: int) -> dict[str, float]:
        """Entries like the relay's, by one client that does nothing else."""
        self.stream.delete("yardstick")
        payload = b'{"id": 42, "note": "' + b"x" * 150 + b'"}'
        before = cpu_seconds([os.getpid()])  # with its children: the servers and the clients
        began = time.perf_counter()
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
        seconds = time.perf_counter() - began
        cpu = cpu_seconds([os.getpid()]) - before
        self.stream.delete("yardstick")
        return {"per_second": round(count / seconds), "cpu_us": round(cpu / count * 1e6)}

    def pgbench(self, seconds: float) -> dict[str, float]:
        """Updates of single rows. The clients' CPU counts too."""
        script = self.directory / "update.sql"
        if not script.exists():
            script.write_text(UPDATE)
            self._pgbench("-i", "-q", "-s", "1")
        before = cpu_seconds([os.getpid()])  # with its children: the servers and the clients
        arguments = [
            "-n",
            "-M",
            "prepared",
            "-c",
            str(CLIENTS),
            "-j",
            "2",
            "-T",
            str(round(seconds)),
            "-f",
            str(script),
        ]
        said = self._pgbench(*arguments)
        cpu = cpu_seconds([os.getpid()]) - before
        [count] = re.findall(r"number of transactions actually processed: (\d+)", said)
        [rate] = re.findall(r"tps = ([\d.]+) \(without initial", said)
        return {"per_second": round(float(rate)), "cpu_us": round(cpu / int(count) * 1e6)}

    def _pgbench(self, *arguments: str) -> str:
        install = PostgresInstall(None)
        environment = {**os.environ, "PGOPTIONS": "-c synchronous_commit=off"}
        argv = [install.binary("pgbench"), *arguments, str(self.settings.database_url)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pgbench failed: {done.stderr}")
        return done.stdout

    def wal(self, count: int) -> float:
        """Bytes of WAL a message, from its insert until it is in the archive."""
        self._configure("autovacuum = off")
        before = self._written()
        self.drain(count, bundle_size=100)
        after = self._written()
        self._configure("autovacuum = on")
        return (after - before) / count

    def _configure(self, setting: str) -> None:
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"ALTER SYSTEM SET {setting}"))
            connection.execute(text("SELECT pg_reload_conf()"))
            connection.execute(text("CHECKPOINT"))  # full pages from here on, as in any hour of its life

    def _written(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")))


UNSETTLED = "SELECT EXISTS (SELECT FROM outbox_all WHERE state NOT IN ('sent', 'discarded', 'dead'))"
PUBLISH = """import sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from outbox_tasks import Message, Outbox, Settings
from outbox_tasks.database.connection import engine_url

settings = Settings(nudge=False)
outbox = Outbox(settings)
with Session(create_engine(engine_url(settings.database_url))) as session, session.begin():
    messages = [Message("order.created", {"id": n, "note": "x" * 150}) for n in range(int(sys.argv[1]))]
    outbox.publish_many(session, messages)
"""


class OtherRelease(Yardsticks):
    """The same with the code of another checkout, whose tables may be others too."""

    def move_to(self, checkout: Path) -> None:
        """From now on, use that code."""
        self.cwd = checkout
        with self.engine.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        argv = [sys.executable, "-m", "outbox_tasks", "init"]
        subprocess.run(argv, cwd=checkout, env=self.environment, check=True, capture_output=True)

    def write(self, count: int, key: str = "NULL") -> None:
        """Let that code publish so many messages."""
        argv = [sys.executable, "-c", PUBLISH, str(count)]
        subprocess.run(argv, cwd=self.cwd, env=self.environment, check=True)

    def is_settled(self) -> bool:
        """Whether no message is at work: this view is there in all releases."""
        with self.engine.connect() as connection:
            return not connection.scalar(text(UNSETTLED))


@bench
@click.option("--rounds", default=5, show_default=True, help="How often each takes its turn.")
@click.option("--messages", default=50_000, show_default=True, help="Of a drain in bundles; a quarter of it otherwise.")
@click.option("--seconds", default=10.0, show_default=True, help="Of pgbench.")
@click.option("--against", metavar="CHECKOUT", help="Let the relay of another release take its turns too.")
@click.option("--deep", is_flag=True, help="The claim from a full table too: it takes minutes, and 5 GB.")
@click.option(
    "--rows", default=1_000_000, show_default=True, help="Pending rows for that; five times as many archived."
)
def main(
    say: Say, rounds: int, messages: int, seconds: float, against: str | None, deep: bool, rows: int
) -> list[Figures]:
    """The relay beside raw Celery, pgbench and XADD."""
    few = messages // 4
    ways: dict[str, Callable[[Yardsticks], dict[str, float]]] = {
        "XADD, pipelines of 100": lambda run: run.xadd(messages),
        "pgbench, single-row updates": lambda run: run.pgbench(seconds),
        "relay, in bundles": lambda run: run.drain(messages, bundle_size=100),
        "raw Celery, no-op task": lambda run: run.raw(few),
        "relay, one by one": lambda run: run.drain(few, bundle_size=1),
        "relay, per message": lambda run: run.drain(few, bundle_size=1, profile=PER_MESSAGE),
    }
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    with ExitStack() as stack:
        run = stack.enter_context(running(Yardsticks))
        if against is not None:
            other = stack.enter_context(running(OtherRelease))
            other.move_to(Path(against).absolute())
            ways[OTHER] = lambda _: other.drain(messages, bundle_size=100)
        for turn in range(rounds):
            for name, way in ways.items():
                say(f"round {turn + 1} of {rounds}: {name}")
                found[name].append(way(run))
        say("WAL")
        wal = [run.wal(few) for _ in range(min(3, rounds))]
    figures = _ratios(found)
    figures["WAL bytes a message"] = spread(wal, 0)
    if deep:
        say("claims from a full table")
        figures["claim of 100, full ÷ empty table"] = {"median": claim.full_against_empty(rows, 5 * rows)}
    for name, aim in AIMS.items():
        if name in figures:
            figures[name]["aim"] = aim
    return [Figures("2 publish workers", _rates(found)), Figures("figure", figures)]


def _rates(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "messages/s": round(median(one["per_second"] for one in each)),
            "rounds": [round(one["per_second"]) for one in each],
            "CPU µs each": round(median(one["cpu_us"] for one in each)),
            "CPU µs, rounds": [round(one["cpu_us"]) for one in each],
        }
        for name, each in found.items()
    }


def _ratios(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    bundles, single, raw, updates, xadd = (
        [one["per_second"] for one in found[name]]
        for name in (
            "relay, in bundles", "relay, one by one", "raw Celery, no-op task", "pgbench, single-row updates",
            "XADD, pipelines of 100",
        )
    )  # fmt: skip
    pairs = {
        "bundles ÷ raw Celery": (bundles, raw),
        "one by one ÷ raw Celery": (single, raw),
        "bundles ÷ pgbench updates": (bundles, updates),
        "bundles ÷ XADD": (bundles, xadd),
    }
    figures = {name: spread([a / b for a, b in zip(*pair, strict=True)]) for name, pair in pairs.items()}
    if OTHER in found:
        cpu = zip(found["relay, in bundles"], found[OTHER], strict=True)
        figures["CPU a message ÷ the other release's"] = spread([a["cpu_us"] / b["cpu_us"] for a, b in cpu])
    figures["CPU µs a message, in bundles"] = spread([one["cpu_us"] for one in found["relay, in bundles"]], 0)
    return figures
