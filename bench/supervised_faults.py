"""The faults of the bench `supervised`: what becomes of tasks while brokers are flushed and workers are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import redis
from celery import Celery, chain
from sqlalchemy import text
from sqlalchemy.orm import Session

from bench.relay import ROOT, Bench
from bench.supervised_runs import Run, Troubles, overlaps, read_runs
from lab.trace import Trace
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.outbox import Outbox

LEASE, VISIBILITY, PAUSE = 4.0, 6.0, 3.0
SHARES = {
    "quick": 0.56,
    "long": 0.06,
    "holding": 0.01,
    "undone": 0.03,
    "retrying": 0.12,
    "failing": 0.10,
    "chain": 0.12,
}
DEADLY = 4
ENDS = ("returned", "dead", "discarded")
"""What a history says of an end, not of a repetition."""
POOLS = {"prefork": ["-P", "prefork", "-c", "2"], "threads": ["-P", "threads", "-c", "4"]}


class Faults(Bench):
    """The shop's workers, its broker, and somebody who breaks them."""

    patience = 300.0

    def run(
        self, shop_broker: EmbeddedValkey, tasks: int, *, supervises: bool, late: bool, seed: int
    ) -> dict[str, Any]:
        """All tasks of one kind of shop. Returns what became of them."""
        self.broken, self.valkey, self.random = Troubles(), shop_broker, random.Random(seed)
        self.supervises, self.over = supervises, False
        notes = self.directory / f"runs-{supervises}-{late}"
        notes.mkdir()
        tasks_of_shop = {
            "url": f"celery://?broker={shop_broker.url}", "confirm": "run", "run_lease": LEASE, "max_attempts": 5,
            "confirm_within": 20,
        }  # fmt: skip
        self.know({"tasks": tasks_of_shop})
        self.environment |= {
            "PYTHONPATH": str(ROOT),
            "SHOP_BROKER_URL": shop_broker.url,
            "SHOP_RUNS": str(notes),
            "SHOP_SUPERVISES": "1" if supervises else "",
            "SHOP_ACKS_LATE": "1" if late else "",
            "SHOP_VISIBILITY": str(VISIBILITY),
        }
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS effects (name text)"))
            connection.execute(text("TRUNCATE effects"))
            schema = str(connection.scalar(text("SELECT current_schema()")))
        trace = Trace(self.engine, schema)
        trace.install()
        with self._shop():
            breaker = threading.Thread(target=self._break)
            breaker.start()
            names = self._call(tasks)
            self.over = True
            breaker.join()
            left = self._wait()
        traced = trace.check()
        assert not traced.wrong, str(traced)
        return self._told(names, notes, left)

    @contextmanager
    def _shop(self) -> Iterator[None]:
        celery = [sys.executable, "-m", "celery", "-A"]
        self.pools: dict[str, Child] = {}
        relay = None
        if self.supervises:
            argv = [*celery, "outbox_tasks", "worker", "-B", "-P", "threads", "-c", "4", "-l", "WARNING"]
            relay = self._start("relay", [*argv, "-s", str(self.directory / "beat")])
        for pool, options in POOLS.items():
            self.pools[pool] = self._start(
                pool, [*celery, "bench.supervised_shop", "worker", "-l", "WARNING", *options, "-n", f"{pool}@%h"]
            )
        try:
            yield
        finally:
            for child in (*self.pools.values(), *([relay] if relay else [])):
                child.end()

    def _start(self, name: str, argv: Sequence[str]) -> Child:
        log = self.directory / f"{name}.log"
        return self.group.start(name, argv, env=self.environment, cwd=self.directory, log=log)

    def _call(self, tasks: int) -> list[tuple[str, str]]:
        """Call all tasks, in twenty goes. Returns the names that must have an effect, or a dead letter, by shape."""
        app = Celery("caller", broker=self.valkey.url, set_as_current=False)
        outbox = Outbox(self.settings, celery=app)
        names = [(shape, f"{shape}-{n}") for shape, share in SHARES.items() for n in range(round(tasks * share))]
        names += [("deadly", f"deadly-{n}") for n in range(DEADLY)]
        self.random.shuffle(names)
        expected = []
        for go in range(20):
            some = names[go::20]
            if self.supervises:
                with Session(self.engine) as session, session.begin(), outbox.capture(session):
                    for shape, name in some:
                        _signature(app, shape, name).apply_async()
            else:
                for shape, name in some:
                    _until_it_works(_signature(app, shape, name).apply_async)
            for shape, name in some:
                steps = [f"{name}.{n}" for n in range(3)] if shape == "chain" else [name]
                expected += [(shape, step) for step in steps]
            time.sleep(1.5)
        return expected

    def _break(self) -> None:
        """One fault after the other, until all tasks are called."""
        acts = [self._flush, self._kill_broker, self._kill_child, self._kill_worker, self._stop_worker]
        n = 0
        while not self.over:
            self._watched_sleep(PAUSE)
            acts[n % len(acts)]()
            n += 1

    def _watched_sleep(self, seconds: float) -> None:
        """Start workers again that have died, and see who is alive."""
        until = time.time() + seconds
        while time.time() < until:
            self._tend()
            time.sleep(0.1)

    def _tend(self) -> None:
        for pool, child in self.pools.items():
            if not child.alive:
                self.broken.counts["workers that died"] += 1
                child.end()
                self.pools[pool] = self._start(pool, child.argv)
            else:
                for pid in self._pids(child):
                    self.broken.gone[pid] = time.time()

    def _pids(self, child: Child) -> list[int]:
        with suppress(psutil.NoSuchProcess):
            return [child.pid, *(each.pid for each in psutil.Process(child.pid).children(recursive=True))]
        return []

    def _flush(self) -> None:
        self.broken.counts["flushes"] += 1
        with suppress(redis.RedisError):
            redis.Redis.from_url(self.valkey.url).flushall()

    def _kill_broker(self) -> None:
        self.broken.counts["brokers killed"] += 1
        self.valkey.kill()
        self._watched_sleep(0.5)
        self.valkey.restart()

    def _kill_child(self) -> None:
        children = self._pids(self.pools["prefork"])[1:]
        if children:
            self.broken.counts["children killed"] += 1
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(children), signal.SIGKILL)

    def _kill_worker(self) -> None:
        self.broken.counts["workers killed"] += 1
        self.pools[self.random.choice(list(POOLS))].kill()

    def _stop_worker(self) -> None:
        """For longer than the lease: the main process, and its children."""
        self.broken.counts["workers stopped"] += 1
        pids, began = self._pids(self.pools[self.random.choice(list(POOLS))]), time.time()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * LEASE)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self.broken.stopped.append((pid, began, time.time()))

    def _wait(self) -> int:
        """Until all is done, or nothing happens any more. Returns how many rows are left."""
        until, quiet, before = time.monotonic() + self.patience, 0, -1
        while time.monotonic() < until:
            self._watched_sleep(1.0)
            with self.engine.connect() as connection:
                left = connection.scalar(text("SELECT count(*) FROM outbox_at_work WHERE place <> 'dead'")) or 0
                effects = connection.scalar(text("SELECT count(*) FROM effects"))
            if self.supervises and not left:
                return 0
            quiet = quiet + 1 if effects == before else 0
            before = effects
            if not self.supervises and quiet > 2 * VISIBILITY + 10:
                break
        return int(left)

    def _told(self, names: list[tuple[str, str]], notes: Path, left: int) -> dict[str, Any]:
        with self.engine.connect() as connection:
            effects = Counter(connection.scalars(text("SELECT name FROM effects")))
            codes = Counter(connection.scalars(text("SELECT last_error_code FROM outbox_at_work WHERE place = 'dead'")))
        runs = read_runs(notes)
        due = [name for shape, name in names if shape not in ("failing", "deadly")]
        dead = sum(codes.values())
        lost = sum(name not in effects for name in due)
        both, in_stopped = overlaps(runs, self.broken)
        return {
            "tasks": len(names),
            "effects twice": sum(count > 1 for count in effects.values()),
            "without effect": lost,
            "failed": sum(shape in ("failing", "deadly") for shape, _ in names),
            "dead letters": dead,
            "of them worker_lost": codes["worker_lost"],
            "second runs without a cause": self._uncaused(runs) if self.supervises else 0,
            "no trace": left if self.supervises else lost + len(names) - len(due),
            "runs": sum(map(len, runs.values())),
            "at the same time": both,
            "of these in a stopped worker": in_stopped,
            **self.broken.counts,
        }

    def _uncaused(self, runs: dict[str, list[Run]]) -> int:
        """Runs of a task beyond the first that its row's history has no cause for."""
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT payload, history FROM outbox_all")).all()
        causes: Counter[str] = Counter()
        for row in rows:
            name = str(json.loads(row.payload)[0][0])
            causes[name] += sum(entry["what"] not in ENDS for entry in row.history or ())
        return sum(max(0, len(each) - 1 - causes[name]) for name, each in runs.items())


def _signature(app: Celery, shape: str, name: str) -> Any:
    if shape != "chain":
        return app.signature(f"shop.{shape}", (name,))
    return chain(*(app.signature("shop.step", (f"{name}.{n}",), immutable=True) for n in range(3)))


def _until_it_works(send: Callable[[], object]) -> None:
    for _ in range(100):
        try:
            send()
            return
        except Exception:  # the broker is away
            time.sleep(0.2)
