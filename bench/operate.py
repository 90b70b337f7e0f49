"""What the commands for people cost when there is much.

Each line is the median of several runs of a command in this process, from its arguments to its output, and the slowest
of them; the last ones are run once as programs, with the start of Python. Then 10,000 dead letters of one error group
are redriven, as fast as it goes and at 2,000 a second. The server is an embedded one, unless OUTBOX_DATABASE_URL names
another; there the bench keeps to a schema of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
from click.testing import CliRunner

from bench import filled, fresh, storage
from bench.filled import DESTINATIONS, ROW
from bench.report import Figures, Say, bench
from outbox_tasks.cli import outbox
from outbox_tasks.settings import Settings

RUNS, DEAD, RATE = 5, 10_000, 2_000.0
"""Runs of a command; dead letters of the largest group, and all others together."""

DEAD_LETTERS = f"""SELECT id, time AS created_at, 'dead.' || kind AS event_type,
       (ARRAY['orders', 'mails', 'audit', 'search'])[1 + kind % 4] AS destination, NULL::text AS key,
       NULL::jsonb AS headers, payload, 20 AS attempts, 'http_400' AS code, 'refused: no such order ' || n AS error,
       '[]'::jsonb AS history, time + interval '1 minute' AS dead_at
FROM (SELECT *, CASE WHEN n < :largest THEN 0 ELSE 1 + n % 11 END AS kind
      FROM ({ROW}
            FROM (SELECT n, now() - make_interval(secs => 7200.0 + n) AS time FROM generate_series(0, :count - 1) n))
           made) rows"""

AGAIN = """WITH gone AS (
  DELETE FROM {schema}.outbox_ready r USING {schema}.outbox_messages m
  WHERE m.seq = r.seq AND m.event_type = 'dead.0' RETURNING m.seq, m.destination, m.event_type
)
INSERT INTO {schema}.outbox_dead (seq, kin, destination)
SELECT seq, {schema}.outbox_error_group(destination, event_type, t.code, t.error), destination
FROM gone JOIN {schema}.outbox_trouble t USING (seq)"""

COMMANDS = {
    "status": ["status"],
    "list": ["list"],
    "list, one destination": ["list", "--destination", "mails"],
    "list, dead": ["list", "--state", "dead"],
    "list, leased": ["list", "--state", "leased"],
    "list, retrying of a destination": ["list", "--state", "retrying", "--destination", "orders"],
    "list, a rare type": ["list", "--type", "dead.3"],
    "list, no such type": ["list", "--type", "nothing.*"],
    "list, a key": ["list", "--key", "order:4"],
    "list, sent, older than 3 days": ["list", "--state", "sent", "--older-than", "3d"],
    "list, newer than 5 minutes": ["list", "--newer-than", "5m"],
    "list, an error code": ["list", "--error", "http_400"],
    "list, an error group": ["list", "--error", "GROUP"],
    "show, pending": ["show", "PENDING"],
    "show, archived": ["show", "ARCHIVED"],
    "errors": ["errors"],
    "errors of a destination": ["errors", "--destination", "mails"],
    "keys": ["keys"],
    "audit": ["audit"],
    "redrive a group, --dry-run": ["redrive", "--group", "GROUP", "--dry-run"],
    "redrive all, --dry-run": ["redrive", "--all", "--dry-run"],
}
AS_PROGRAMS = ("list", "show, archived", "errors")


class Commands:
    """One outbox, full of rows, and the commands that run on it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.named: dict[str, str] = {}

    def run(self, sql: str, **values: object) -> list[Any]:
        """Execute SQL without the relay's limits."""
        return fresh.execute(self.settings, sql, **values)

    def fill(self, archived: int, pending: int) -> None:
        """Make the rows, and analyze the tables."""
        filled.archive(self.settings, archived)
        filled.pend(self.settings, pending)
        storage.bury(self.settings, DEAD_LETTERS, count=2 * DEAD, largest=DEAD)
        filled.analyze(self.settings)
        self.named = {
            "PENDING": self._id("outbox_at_work WHERE place = 'ready'"),
            "ARCHIVED": self._id("outbox_archive"),
            "GROUP": max(self.groups(), key=lambda group: int(group["count"]))["group"],
        }

    def _id(self, place: str) -> str:
        return str(self.run(f"SELECT id FROM {{schema}}.{place} OFFSET 1000 LIMIT 1")[0][0])

    def arguments(self, command: str) -> list[str]:
        """A command's arguments, with the ids of messages."""
        return [self.named.get(part, part) for part in COMMANDS[command]]

    def measure(self, command: str) -> dict[str, float]:
        """Milliseconds of a command in this process."""
        taken = []
        for _ in range(RUNS):
            started = time.perf_counter()
            self.call(*self.arguments(command))
            taken.append((time.perf_counter() - started) * 1000)
        return {"ms": round(median(taken), 1), "slowest": round(max(taken), 1)}

    def as_program(self, command: str) -> dict[str, float]:
        """Milliseconds of a command with the start of Python."""
        started = time.perf_counter()
        arguments = [sys.executable, "-m", "outbox_tasks", *self.arguments(command)]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return {"ms": round((time.perf_counter() - started) * 1000, 1)}

    def call(self, *arguments: str) -> str:
        """What a command prints."""
        result = CliRunner().invoke(outbox, arguments, prog_name="outbox-tasks")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        assert result.exit_code == 0, result.output
        return result.stdout

    def groups(self) -> list[dict[str, Any]]:
        """The error groups."""
        return list(json.loads(self.call("errors", "--json"))["groups"])

    def redrive(self, *rate: str) -> dict[str, float]:
        """Messages a second of a redrive of the largest group, which is dead again afterwards."""
        started = time.perf_counter()
        told = json.loads(self.call("redrive", "--group", self.named["GROUP"], "--yes", "--json", *rate))
        seconds = time.perf_counter() - started
        assert told["redriven"] == DEAD, told
        self.run(AGAIN)
        return {"ms": round(seconds * 1000, 1), "messages/s": round(DEAD / seconds)}


@contextmanager
def found_by_commands() -> Iterator[Commands]:
    """A fresh outbox that the commands find by the environment."""
    with ExitStack() as stack:
        places = {name: {"url": "redis+stream://localhost/0/x"} for name in DESTINATIONS}
        settings = stack.enter_context(fresh.outbox(destinations=places))
        os.environ |= {
            "OUTBOX_DATABASE_URL": str(settings.database_url),
            "OUTBOX_DATABASE_SCHEMA": str(settings.database_schema),
            "OUTBOX_DESTINATIONS": json.dumps(places),
            "COLUMNS": "120",
        }
        stack.callback(os.chdir, Path.cwd())
        os.chdir(stack.enter_context(TemporaryDirectory()))
        yield Commands(settings)


@bench
@click.option("--archived", default=5_000_000, show_default=True, help="Rows of the archive.")
@click.option("--pending", default=1_000_000, show_default=True, help="Rows of the backlog.")
def main(say: Say, archived: int, pending: int) -> list[Figures]:
    """What the commands for people cost."""
    figures: dict[str, dict[str, float]] = {}
    with found_by_commands() as made:
        say("filling the tables")
        made.fill(archived, pending)
        for command in COMMANDS:
            say(command)
            figures[command] = made.measure(command)
        for command in AS_PROGRAMS:
            figures[f"{command} (program)"] = made.as_program(command)
        say("redrive")
        figures[f"redrive {DEAD:,}"] = made.redrive()
        figures[f"redrive {DEAD:,} at {RATE:,.0f}/s"] = made.redrive("--rate", str(RATE))
    return [Figures("command", figures, f"{archived:,} archived, {pending:,} pending")]
