"""Servers of their own, a relay on them, and raw Celery beside it: what the benches run.

The relay is that of this checkout. With `--against` that of another checkout takes turns with it, on its own servers.
So a bench uses only what both have: queues, tasks, commands, views, and `outbox_write`.

Two solo publish workers run, with log level WARNING, and without task events unless a bench says so. CPU is that of all
processes that take part, with the servers. Rates on shared machines vary from run to run; their ratio is what counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import click
import psutil
import redis
from celery import Celery
from psycopg.errors import DeadlockDetected
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from bench import storage
from outbox_tasks import Settings
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.processes import Child, Group
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey

ROOT = Path(__file__).parents[1]
WORKERS, WARM = 2, 1_000
CLAIM = "outbox.claim"
AT_WORK = "SELECT EXISTS (SELECT FROM outbox_at_work WHERE place <> 'dead')"
LOOK_SECONDS = 0.005
"""Seconds between two looks at whether all is done."""

OTHER = ", other"
"""What the rows of another checkout are called."""

AGAINST = click.option(
    "--against", type=click.Path(exists=True, file_okay=False), help="Let the relay of another checkout take turns."
)

QUIET = """import sys
from celery.__main__ import main
from celery.app.utils import find_app
find_app("outbox_tasks").conf.worker_send_task_events = False
sys.argv[0] = "celery"
main()"""
"""Celery without task events, whatever the settings say."""

Singles = int | Literal["all"] | None
"""The setting; None: its default."""

Figure = dict[str, float]


class Bench:
    """The servers, the destination, and the phases of a measurement."""

    patience = 600.0
    """Seconds after which a phase has failed."""

    def __init__(
        self, checkout: Path, postgres: EmbeddedPostgres, valkey: EmbeddedValkey, group: Group, directory: Path
    ) -> None:
        self.group, self.directory = group, directory
        self.servers = [postgres.pid, valkey.pid]
        self.engine = create_engine(engine_url(postgres.url))
        self.broker = redis.Redis.from_url(valkey.url)
        self.stream_url = valkey.url.removesuffix("0") + "1"
        self.stream = redis.Redis.from_url(self.stream_url)
        self.settings = Settings(database_url=postgres.url, broker_url=valkey.url, destinations=self.streams("bench"))
        urls = {"OUTBOX_DATABASE_URL": postgres.url, "OUTBOX_BROKER_URL": valkey.url}
        self.environment = {**os.environ, "PYTHONPATH": str(checkout), **urls}
        self.know(self.streams("bench"))

    def streams(self, *names: str) -> dict[str, dict[str, Any]]:
        """Destinations: Redis Streams of these names."""
        return {name: {"url": f"{self.stream_url.replace('redis', 'redis+stream')}/{name}"} for name in names}

    def know(self, destinations: Mapping[str, Mapping[str, Any]], **general: Any) -> None:
        """Let the relay know these destinations and other settings, from its next start on."""
        self.settings = self.settings.replace(destinations=destinations, **general)
        tables = {"": general} | {f"destinations.{json.dumps(name)}": one for name, one in destinations.items()}
        lines = []
        for name, table in tables.items():
            lines += [f"[{name}]"] if name else []
            lines += [f"{setting} = {json.dumps(value)}" for setting, value in table.items()]
        (self.directory / "outbox.toml").write_text("\n".join(lines))

    def command(self, *arguments: str) -> str:
        """What `outbox-tasks` prints."""
        return self.python("-m", "outbox_tasks", *arguments)

    def python(self, *arguments: str) -> str:
        """What a program prints that uses the checkout."""
        argv = [sys.executable, *arguments]
        done = subprocess.run(
            argv, env=self.environment, cwd=self.directory, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def empty(self) -> None:
        """Remove all messages: one phase must not slow down the next."""
        self.stream.flushdb()
        self.wait_for(self._is_empty, "the tables are empty")

    def _is_empty(self) -> bool:
        try:
            with self.engine.begin() as connection:
                storage.clear(connection)
        except OperationalError as error:
            if isinstance(error.orig, DeadlockDetected):  # with a worker that looks whether something is due
                return False
            raise
        return True

    def write(self, count: int, key: str = "NULL", **columns: str) -> None:
        """Commit so many messages: keys and other columns are SQL over their numbers `n`."""
        with self.engine.begin() as connection:
            storage.write(connection, count, key=key, **columns)

    def wake(self) -> None:
        """Wake the claim, as a commit does."""
        with Celery("waker", broker=self.settings.broker_url, set_as_current=False) as app:
            app.send_task("outbox_tasks.claim", queue=CLAIM, ignore_result=True)

    @contextmanager
    def relay(
        self, singles: Singles = None, *, publishers: int = WORKERS, processes: int = 0, events: bool = False
    ) -> Iterator[list[Child]]:
        """A relay, until the end of the block. `processes`: of each publish worker; 0: it is a solo one."""
        celery = ["-m", "celery"] if events else ["-c", QUIET]
        start = [sys.executable, *celery, "-A", "outbox_tasks"]
        worker = [*start, "worker", "--without-gossip", "--without-mingle", "-l", "WARNING", *(["-E"] * events)]
        pool = ["-c", str(processes)] if processes else ["-P", "solo"]
        queues = "outbox.publish,outbox.drain"
        publish = [[*worker, *pool, "-Q", queues, "-n", f"publish{n}@%h"] for n in range(publishers)]
        claim = [*worker, "-P", "solo", "-Q", f"{CLAIM},outbox.maintain", "-n", "claim@%h"]
        environment = self.environment | singles_setting(singles)
        with self.workers([claim, *publish], [*start, "beat", "-l", "WARNING"], environment=environment) as children:
            yield children

    @contextmanager
    def workers(
        self, argvs: Sequence[Sequence[str]], *more: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Iterator[list[Child]]:
        """Processes, and when the first of them, which are workers, listen."""
        bound = "_kombu.binding.celery.pidbox"  # each worker binds its own queue for remote control
        self.broker.delete(bound)
        log, env = self.directory / "workers.log", environment or self.environment
        children = [
            self.group.start(f"worker{n}", argv, env=env, cwd=self.directory, log=log)
            for n, argv in enumerate([*argvs, *more])
        ]
        try:
            self.wait_for(lambda: self.broker.scard(bound) >= len(argvs), "the workers are ready")
            yield children
        finally:
            for child in children:
                child.ask_to_stop()
            for child in children:
                child.stop()

    def delivered(self, workers: list[Child], count: int, key: str = "NULL", name: str = "bench") -> Figure:
        """Write a backlog, and measure until all of it is in the stream of this name."""
        self.empty()
        self.write(count, key, destination=f"'{name}'")
        self.wake()
        figures = self.measure(workers, count, lambda: self.stream.xlen(name) >= count)
        self.wait_for(self.is_settled, "everything is settled")
        return figures

    def drain(self, count: int, singles: Singles = None, *, events: bool = False) -> Figure:
        """Deliver a backlog by a relay that has sent something before."""
        with self.relay(singles, events=events) as workers:
            self.delivered(workers, WARM)
            return self.delivered(workers, count)

    def raw(self, count: int, *, events: bool = False) -> Figure:
        """Tasks of plain Celery that do nothing. They wait in the queue of workers that are stopped, and then go on."""
        argv = [sys.executable, "-m", "celery", "-A", "bench.raw_celery", "worker", "-P", "solo", *(["-E"] * events)]
        env = self.environment | {"PYTHONPATH": str(ROOT)}
        argvs = [[*argv, "-n", f"raw{n}@%h", "-l", "WARNING"] for n in range(WORKERS)]
        with self.workers(argvs, environment=env) as workers, stopped(workers) as go_on:
            send_tasks(Celery("raw", broker=self.settings.broker_url, set_as_current=False), "raw.noop", count)
            go_on()
            return self.measure(workers, count, self.is_queue_empty)

    def is_queue_empty(self) -> bool:
        """Whether workers of plain Celery have nothing to do any more."""
        return not self.broker.llen("celery") and not self.broker.hlen("unacked")

    def is_settled(self) -> bool:
        """Whether no message is at work."""
        with self.engine.connect() as connection:
            return not connection.scalar(text(AT_WORK))

    def measure(self, workers: Sequence[Child], count: int, done: Callable[[], bool]) -> Figure:
        """The rate and the CPU of `count` messages, from now until they are `done`."""
        pids = [*self.servers, *(worker.pid for worker in workers)]
        started, cpu = time.perf_counter(), cpu_seconds(pids)
        self.wait_for(done, f"{count} are done")
        seconds = time.perf_counter() - started
        return {"per_second": round(count / seconds), "cpu_us": (cpu_seconds(pids) - cpu) / count * 1e6}

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until it is true."""
        deadline = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > deadline:
                log = self.directory / "workers.log"
                tail = log.read_text()[-2000:] if log.exists() else ""
                raise TimeoutError(f"waited {self.patience:g} s in vain until {what}\n{tail}")
            time.sleep(LOOK_SECONDS)


def singles_setting(singles: Singles) -> dict[str, str]:
    """The setting as a variable of the environment."""
    return {} if singles is None else {"OUTBOX_SINGLES": str(singles)}


B = TypeVar("B", bound=Bench)


@contextmanager
def running(kind: type[B], checkout: Path = ROOT, **server: str) -> Iterator[B]:
    """The servers, and a bench on a new outbox. `server`: settings of PostgreSQL."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="outbox-bench-", ignore_cleanup_errors=True)))
        postgres = stack.enter_context(EmbeddedPostgres(settings=server))
        valkey = stack.enter_context(EmbeddedValkey())
        run = kind(checkout, postgres, valkey, stack.enter_context(Group()), directory)
        run.command("init")
        yield run


@contextmanager
def sides(kind: type[B], against: str | None, **server: str) -> Iterator[dict[str, B]]:
    """A bench of this checkout and, if there is one, of the other; by what is added to the names of their rows."""
    with ExitStack() as stack:
        runs = {"": stack.enter_context(running(kind, ROOT, **server))}
        if against is not None:
            runs[OTHER] = stack.enter_context(running(kind, Path(against).absolute(), **server))
        yield runs


@contextmanager
def stopped(workers: Sequence[Child]) -> Iterator[Callable[[], None]]:
    """Workers that stand still until the yielded function is called."""

    def each(number: signal.Signals) -> None:
        for worker in workers:
            worker.send_signal(number)

    each(signal.SIGSTOP)
    try:
        yield lambda: each(signal.SIGCONT)
    finally:
        each(signal.SIGCONT)


def send_tasks(app: Celery, name: str, count: int) -> None:
    """Send so many tasks of plain Celery, with their numbers."""
    with app.producer_or_acquire() as producer:
        for n in range(count):
            app.send_task(name, (n,), producer=producer, ignore_result=True)


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of the processes and their descendants, also of those that have ended."""
    total = 0.0
    for pid in pids:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # user, system; then both of its ended children
    return total
