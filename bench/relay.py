"""A relay that drains a backlog, and raw Celery beside it, on servers of their own.

Both sides have two solo publish workers, no task events and log level WARNING. Both start with a full backlog and idle
workers: the raw tasks wait in the queue of workers that are stopped (SIGSTOP) and then continued; the messages are
committed in one transaction. CPU is that of all processes that take part, with the servers. Rates on shared machines
vary from run to run; their ratio is what counts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import psutil
import redis
from celery import Celery
from sqlalchemy import create_engine, text

from bench import storage
from outbox_tasks.broker.broker import batch
from outbox_tasks.database.connection import engine_url, migrating
from outbox_tasks.local import commands
from outbox_tasks.local.processes import Child, Group
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.writing.nudge import broker_nudge

WORKERS = 2
AT_WORK = "SELECT EXISTS (SELECT FROM outbox_at_work WHERE place <> 'dead')"


class Bench:
    """The servers, the destination, and the phases of the measurement."""

    patience = 120.0
    """Seconds after which a phase has failed."""

    cwd: Path | None = None
    """Where the processes start: in a checkout, they run its code."""

    def __init__(self, settings: Settings, servers: list[int], group: Group, directory: Path) -> None:
        self.settings = settings
        self.servers = servers
        self.group = group
        self.directory = directory
        self.engine = create_engine(engine_url(str(settings.database_url)))
        self.broker = redis.Redis.from_url(str(settings.broker_url))
        self.stream = redis.Redis.from_url(str(settings.broker_url).removesuffix("0") + "1")
        self.environment = {
            **os.environ,
            "OUTBOX_DATABASE_URL": str(settings.database_url),
            "OUTBOX_BROKER_URL": str(settings.broker_url),
            "OUTBOX_DESTINATIONS": json.dumps({"bench": {"url": settings.destinations["bench"].url}}),
        }

    def raw(self, count: int) -> dict[str, float]:
        """Run `count` tasks that do nothing."""
        argv = [sys.executable, "-m", "celery", "-A", "bench.raw_celery", "worker", "-P", "solo"]
        with self._workers([[*argv, "-n", f"raw{n}@%h", "-l", "WARNING"] for n in range(WORKERS)]) as workers:
            for worker in workers:
                os.kill(worker.pid, signal.SIGSTOP)
            app = Celery("raw", broker=self.settings.broker_url, set_as_current=False)
            with app.producer_or_acquire() as producer, batch(producer, 500):
                for n in range(count):
                    app.send_task("raw.noop", (n,), producer=producer, ignore_result=True)
            for worker in workers:
                os.kill(worker.pid, signal.SIGCONT)
            return self.measure(
                workers, count, lambda: not self.broker.llen("celery") and not self.broker.hlen("unacked")
            )

    def drain(
        self, count: int, bundle_size: int, *, publishers: int = WORKERS, claimers: int = 1, profile: str = ""
    ) -> dict[str, float]:
        """Deliver `count` committed messages."""
        self.stream.delete("bench")
        with self.relay(bundle_size, publishers, claimers, profile) as workers:
            self.write(count)
            self.nudge()
            figures = self.measure(workers, count, lambda: self.stream.xlen("bench") >= count)
            self.wait_for(self.is_settled, "everything is settled")
            return figures

    def write(self, count: int, key: str = "NULL") -> None:
        """Commit so many messages, with these keys: SQL over their numbers `n`."""
        with self.engine.begin() as connection:
            storage.write(connection, count, key=key)

    def nudge(self) -> None:
        """Wake the claim, as `Outbox.publish` would."""
        if (nudge := broker_nudge(self.settings)) is not None:
            nudge()

    @contextmanager
    def relay(
        self, bundle_size: int, publishers: int = WORKERS, claimers: int = 1, profile: str = ""
    ) -> Iterator[list[Child]]:
        """A relay of solo workers, until the end of the block."""
        self.environment |= {"OUTBOX_BUNDLE_SIZE": str(bundle_size), "OUTBOX_PROFILE": profile}
        claim = [commands.claim_worker_argv(f"claim{n}", loglevel="WARNING") for n in range(claimers)]
        publish = [commands.publish_worker_argv(n, pool="solo", loglevel="WARNING") for n in range(publishers)]
        argvs = [[word for word in argv if word != "-E"] for argv in (*claim, *publish)]
        with self._workers(argvs, commands.beat_argv(loglevel="WARNING")) as workers:
            yield workers

    @contextmanager
    def _workers(self, argvs: list[list[str]], *more: list[str]) -> Iterator[list[Child]]:
        """Processes, and when the first of them, which are workers, listen."""
        bound = "_kombu.binding.celery.pidbox"  # each worker binds its own queue for remote control
        self.broker.delete(bound)
        log = self.directory / "workers.log"
        children = [
            self.group.start(f"worker{n}", argv, env=self.environment, cwd=self.cwd, log=log)
            for n, argv in enumerate([*argvs, *more])
        ]
        try:
            self.wait_for(lambda: self.broker.scard(bound) >= len(argvs), "the workers are ready")
            yield children
        finally:
            for child in children:
                child.stop()

    def is_settled(self) -> bool:
        """Whether no message is at work."""
        with self.engine.connect() as connection:
            return not connection.scalar(text(AT_WORK))

    def measure(self, workers: list[Child], count: int, done: Callable[[], bool]) -> dict[str, float]:
        """The rate and the CPU of `count` messages, from now until they are `done`."""
        pids = [*self.servers, *(worker.pid for worker in workers)]
        started, cpu = time.perf_counter(), cpu_seconds(pids)
        self.wait_for(done, f"{count} are done")
        seconds = time.perf_counter() - started
        return {
            "per_second": round(count / seconds),
            "cpu_us": round((cpu_seconds(pids) - cpu) / count * 1e6),
        }

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until it is true."""
        deadline = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {self.patience:g} s in vain until {what}")
            time.sleep(0.005)


B = TypeVar("B", bound=Bench)


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of the processes and their descendants, also of those that have ended."""
    total = 0.0
    for pid in pids:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # user, system; then both of its ended children
    return total


@contextmanager
def running(kind: type[B], **server: str) -> Iterator[B]:
    """The servers, and a bench on a migrated outbox. `server`: settings of PostgreSQL."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="outbox-bench-")))
        postgres = stack.enter_context(EmbeddedPostgres(settings=server))
        valkey = stack.enter_context(EmbeddedValkey())
        destination = {"url": valkey.url.replace("redis://", "redis+stream://").rsplit("/", 1)[0] + "/1/bench"}
        settings = Settings(database_url=postgres.url, broker_url=valkey.url, destinations={"bench": destination})
        with migrating(settings) as connection:
            upgrade(connection)
        yield kind(settings, [postgres.pid, valkey.pid], stack.enter_context(Group()), directory)
