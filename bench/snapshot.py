"""What an open snapshot costs: a backlog is drained while a real pg_dump stands still.

`pg_dump` holds its snapshot, and its lock on every table, until the backlog is gone: dead rows stay. It starts while
the destination is paused; then the destination is resumed. CPU is that of PostgreSQL, in µs a message, for each tenth
of the backlog. Two solo publish workers send to a Redis Stream.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import click
from sqlalchemy import text

from bench.order import EVEN, FEW, NONE
from bench.relay import AGAINST, OTHER, Bench, cpu_seconds, sides
from bench.report import Figures, Say, bench
from outbox_tasks.local.binaries import postgres_programs

PARTS, DUMP_STARTS_SECONDS = 10, 120.0
KINDS = {"without keys": (NONE, "≤ 1.2"), "10,000 keys": (EVEN, "≤ 1.5"), "100 keys": (FEW, "≤ 2")}
"""The keys, as SQL, and what the last tenth may cost beside the first."""

STANDS = "SELECT FROM pg_stat_activity WHERE application_name = 'pg_dump' AND wait_event = 'ClientWrite'"


class Dumped(Bench):
    """A relay beside a pg_dump."""

    patience = 3600.0

    def drained(self, count: int, key: str, *, dump: bool) -> dict[str, Any]:
        """A backlog, drained in tenths."""
        self.command("pause", "bench")
        self.empty()
        self.write(count, key)
        with self.relay(), self._dumping() if dump else nullcontext():
            parts, before, began = [], cpu_seconds(self.servers[:1]), time.perf_counter()
            self.command("resume", "bench")
            for part in range(1, PARTS + 1):
                self.wait_for(partial(self._has_sent, count * part // PARTS), "a tenth is sent")
                now = cpu_seconds(self.servers[:1])
                parts.append((now - before) / count * PARTS * 1e6)
                before = now
            rate = count / (time.perf_counter() - began)
            self.wait_for(self.is_settled, "everything is settled")
        return {
            "messages/s": round(rate), "first": round(parts[0], 1), "last": round(parts[-1], 1),
            "tenths": [round(part, 1) for part in parts], "last ÷ first": round(parts[-1] / parts[0], 2),
        }  # fmt: skip

    def _has_sent(self, count: int) -> bool:
        return int(self.stream.xlen("bench")) >= count

    @contextmanager
    def _dumping(self) -> Iterator[None]:
        """A pg_dump that has begun, and waits for its reader."""
        command = [str(postgres_programs() / "pg_dump"), "--data-only", str(self.settings.database_url)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as dump:
            try:
                deadline = time.monotonic() + DUMP_STARTS_SECONDS
                while not self._stands():
                    if dump.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError("pg_dump does not stand still; are there too few messages?")
                    time.sleep(0.05)
                yield
                if dump.poll() is not None:
                    raise RuntimeError("pg_dump has ended before the backlog was drained")
            finally:
                dump.kill()

    def _stands(self) -> bool:
        with self.engine.connect() as connection:
            return bool(connection.execute(text(STANDS)).all())


@bench
@click.option("--messages", default=300_000, show_default=True, help="Messages of a backlog.")
@click.option("--rounds", default=1, show_default=True, help="How often each is measured, in turns.")
@click.option("--only", multiple=True, type=click.Choice(list(KINDS)), help="Not all kinds of keys.")
@AGAINST
def main(say: Say, messages: int, rounds: int, only: tuple[str, ...], against: str | None) -> list[Figures]:
    """A drain beside a pg_dump that stands still."""
    measured: dict[str, dict[str, Any]] = {}
    with sides(Dumped, against, shared_buffers="512MB", max_wal_size="4GB") as runs:
        for turn in range(rounds):
            for kind, (key, aim) in KINDS.items():
                for other, run in runs.items() if not only or kind in only else ():
                    for dump in (False, True):
                        name = f"{kind}, {'beside pg_dump' if dump else 'alone'}, {turn + 1}{other}"
                        say(name)
                        measured[name] = run.drained(messages, key, dump=dump)
                        measured[name]["aim"] = aim if dump and other != OTHER else ""
    return [Figures(f"PostgreSQL's CPU, {messages:,} messages", measured)]
