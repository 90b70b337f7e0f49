"""Run the cells of chaos and pressure of the harness's own sweep, without Docker: `python -m bench.harness all`."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from bench.harness.adapter import MANIFEST, STREAM, SYSTEM
from bench.machine import Watch
from bench.report import KEPT, Figures, Report, show
from outbox_tasks import __version__
from outbox_tasks.database.connection import engine_url
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0
"""Seconds after which the sweep gives a cell up, as for the others."""

WARM = ["warmup=warmup:30s", "clean_1=clean:60s"]
PRESSURE: dict[str, tuple[list[str], int, int]] = {
    "idle_in_tx": (["idle_1=idle-in-tx:240s", "recovery_1=clean:180s"], 800, 32),
    "sustained_high_load": (["pressure_1=high-load:240s", "recovery_1=clean:120s"], 800, 32),
    "active_readers": (["readers_1=active-readers:240s", "recovery_1=clean:120s"], 800, 32),
    "event_burst": (["pressure_1=high-load:300s", "recovery_1=clean:240s"], 1200, 64),
}
"""Phases, rate and consumers, as in the sweep of 2026-05-09."""

CHAOS = {
    "postgres_restart": (600, 1), "pg_backend_kill": (600, 1), "pool_exhaustion": (600, 1), "crash_recovery": (300, 2),
    "repeated_kills": (300, 2),
}  # fmt: skip
"""Rate of each replica, and replicas."""

TOLD = ("enqueue_rate", "completion_rate", "end_to_end_p50_ms", "end_to_end_p99_ms", "queue_depth")


def arguments(cell: str) -> list[str]:
    """The command line of the harness."""
    if cell in CHAOS:
        rate, replicas = CHAOS[cell]
        return ["--scenario", f"chaos_{cell}", "--producer-rate", str(rate), "--replicas", str(replicas)]
    phases, rate, workers = PRESSURE[cell]
    spelled = [word for phase in (*WARM, *phases) for word in ("--phase", phase)]
    return [*spelled, "--producer-mode", "fixed", "--producer-rate", str(rate), "--worker-count", str(workers)]


class Servers:
    """PostgreSQL and Valkey, in place of the harness's Docker Compose."""

    def __init__(self, harness: Path, directory: Path, stack: ExitStack, adapters: Any) -> None:
        self._settings, self._adapters = configuration(harness / "postgres.conf"), adapters
        self._directory, self._stack = directory, stack
        self._started = 0
        self.valkey = stack.enter_context(EmbeddedValkey())
        self._postgres: EmbeddedPostgres | None = None
        self.kept: dict[str, int] = {}

    def start(self, _image: str = "") -> None:
        """An empty PostgreSQL, unless one runs."""
        if self._postgres is not None:
            return
        self._started += 1
        self._postgres = EmbeddedPostgres(self._directory / f"postgres{self._started}", settings=self._settings)
        self._stack.enter_context(self._postgres)
        password = self._postgres.url.partition("outbox:")[2].partition("@")[0]
        for name, value in {"PG_PORT": self._postgres.port, "PG_USER": "outbox", "PG_PASS": password}.items():
            setattr(self._adapters, name, value)

    def drop(self, _image: str = "") -> None:
        """End it, and look first at what it has of the cell."""
        if self._postgres is not None:
            self.kept = self._found(self._postgres.url) or self.kept
            self._postgres.stop()
            self._postgres = None
            redis.Redis.from_url(self.valkey.url).flushall()

    def pause(self, _image: str = "") -> None:
        """Shut it down; its data stay."""
        assert self._postgres is not None
        self._postgres.stop()

    def resume(self, _image: str = "") -> None:
        assert self._postgres is not None
        self._postgres.start()

    def restart(self, image: str = "") -> None:
        self.pause(image)
        self.resume(image)

    def _found(self, url: str) -> dict[str, int]:
        """What was committed, and what the destination has of it."""
        engine = create_engine(engine_url(f"{url.rpartition('/')[0]}/{MANIFEST['db_name']}"))
        try:
            with engine.connect() as connection:
                committed = {str(id) for (id,) in connection.execute(text("SELECT id FROM outbox_messages"))}
                at_work = {str(id) for (id,) in connection.execute(text("SELECT id FROM outbox_at_work"))}
        except OperationalError:  # the database is not made yet
            return {}
        arrived: list[str] = []
        stream: Any = redis.Redis.from_url(self.valkey.url.removesuffix("0") + "1")
        last = "-"
        while entries := stream.xrange(STREAM, last, count=20_000):
            arrived += [fields[b"ce_id"].decode() for _, fields in entries]
            last = "(" + entries[-1][0].decode()
        return {
            "committed": len(committed),
            "lost": len(committed - set(arrived) - at_work),
            "never committed": len(set(arrived) - committed),
            "twice": len(arrived) - len(set(arrived)),
            "left at the end": len(at_work - set(arrived)),
        }


def configuration(file: Path) -> dict[str, str]:
    """The settings in a postgresql.conf, but for where it listens."""
    lines = [line.partition("#")[0].partition("=") for line in file.read_text().splitlines()]
    found = {name.strip(): value.strip().strip("'") for name, _, value in lines if value.strip()}
    return {name: value for name, value in found.items() if name != "listen_addresses"}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The relay in a harness of others."""


HARNESS = click.option("--harness", type=click.Path(path_type=Path, exists=True), required=True, help="Its checkout.")
OUT = click.option("--out", type=click.Path(path_type=Path), default=KEPT / "harness", help="Where its raw data go.")


@main.command()
@click.argument("name", type=click.Choice([*CHAOS, *PRESSURE]))
@HARNESS
@OUT
def cell(name: str, harness: Path, out: Path) -> None:
    """One cell."""
    sys.path.insert(0, str(harness))
    adapters, orchestrator = import_module("bench_harness.adapters"), import_module("bench_harness.orchestrator")
    watch = Watch()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="outbox-harness-", ignore_cleanup_errors=True)))
        directory.chmod(0o711)
        servers = Servers(harness, directory, stack, adapters)
        # Our producer reads the control file, so that a phase of high load is one. Otherwise the harness would write to
        # a pipe that nobody reads, and hang when it closes that.
        os.environ["PRODUCER_PACING"] = "adapter"
        os.environ["OUTBOX_BROKER_URL"] = servers.valkey.url
        os.environ["BENCH_STREAM_URL"] = servers.valkey.url.replace("redis", "redis+stream").removesuffix("0") + "1"

        def launch(manifest: Any, overrides: Mapping[str, str]) -> Any:
            argv = [sys.executable, "-m", "bench.harness.adapter"]
            return adapters.LaunchSpec(argv=argv, env=adapters._base_env(manifest, overrides), cwd=str(ROOT))

        adapters.ADAPTERS[SYSTEM] = adapters.AdapterEntry(Path(__file__).parent, lambda skip: None, launch)
        ours = {
            "RESULTS_ROOT": directory, "start_postgres": servers.start, "stop_postgres": servers.drop,
            "_compose_stop_postgres": servers.pause, "_compose_start_postgres": servers.resume,
            "_restart_postgres": servers.restart,
            # Their plots and their page are left out: the raw data are what is kept.
            "render_all": lambda *_, **__: None, "write_interactive_report": lambda *_, **__: None,
        }  # fmt: skip
        for attribute, value in ours.items():
            setattr(orchestrator, attribute, value)
        orchestrator.main(["run", "--systems", SYSTEM, *arguments(name)])
        [found] = directory.glob("*/summary.json")
        out.mkdir(parents=True, exist_ok=True)
        with gzip.open(out / f"{name}.csv.gz", "wb", 9) as packed:
            packed.write(found.with_name("raw.csv").read_bytes())
        phases = json.loads(found.read_text())["systems"][SYSTEM]
        told = {"cell": name, "machine": watch.told(), "messages": servers.kept, **phases}
        (out / f"{name}.json").write_text(json.dumps(thin(told), indent=1) + "\n")


def thin(told: dict[str, Any]) -> dict[str, Any]:
    """Without the figures of single tables: those are in the raw data."""
    for phase in told["phases"].values():
        phase["metrics"] = {metric: one for metric, one in phase["metrics"].items() if metric in TOLD}
        phase.pop("replicas", None)
    return told


@main.command("all")
@click.argument("names", nargs=-1, type=click.Choice([*CHAOS, *PRESSURE]))
@HARNESS
@OUT
def run_all(names: tuple[str, ...], harness: Path, out: Path) -> None:
    """All cells, or those that are named, one after the other."""
    codes = {}
    for name in names or (*CHAOS, *PRESSURE):
        argv = [sys.executable, "-m", "bench.harness", "cell", name, "--harness", str(harness), "--out", str(out)]
        began = time.monotonic()
        with subprocess.Popen(argv, cwd=ROOT) as process:
            try:
                codes[name] = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = 137
        click.echo(f"{name}: exit code {codes[name]} after {time.monotonic() - began:.0f} s", err=True)
    show(report(out))
    sys.exit(any(codes.values()))


@main.command("show")
@OUT
def show_kept(out: Path) -> None:
    """What was found last."""
    show(report(out))


def report(out: Path) -> Report:
    """The figures of the cells that have run."""
    found = {
        name: json.loads(file.read_text()) for name in (*CHAOS, *PRESSURE) if (file := out / f"{name}.json").exists()
    }
    rows = {name: row(told) for name, told in found.items()}
    machine = next(iter(found.values()))["machine"] if found else Watch().told()
    return Report("harness", "", __version__, {}, machine, [Figures("cell", rows)])


def row(told: dict[str, Any]) -> dict[str, Any]:
    """The rates in three phases, what the harness says of them, and what we know of each message."""
    phases = list(told["phases"].items())
    rates = {name: phase["metrics"]["completion_rate"]["median"] for name, phase in phases}
    before, after = rates[phases[0][0]], rates[phases[-1][0]]
    under = [rate for name, rate in list(rates.items())[1:-1]]
    slow = max(phase["metrics"]["end_to_end_p99_ms"]["peak"] for _, phase in phases)
    return {
        "before /s": round(before), "under stress /s": [round(rate) for rate in under], "after /s": round(after),
        "stress ÷ before": round(min(under) / before, 2), "after ÷ before": round(after / before, 2),
        "slowest p99 ms": round(slow), **told["messages"],
    }  # fmt: skip


if __name__ == "__main__":
    main(prog_name="python -m bench.harness")
