"""What feeds cost: to copy, to wait for, to write, and many of them under one relay.

- copied: rows of a backlog that a bridge copies in a second, and that beside the rate at which the relay drains as many
  messages in the same run;
- latency: milliseconds from a commit in the other database to the destination. The writer's nudge wakes the bridge;
- writers: the p99 of transactions of two rows by four writers, beside a bridge and without one. They take turns;
- many: PostgreSQL feeds, a schema each, whose bridges share a worker of four processes: the latency while all are well,
  and of the others once one source is frozen and one is dead; how long a new one takes to deliver its first message
  without a restart; and the most connections at once.

The sources are SQLite, another PostgreSQL database, and those that `--source` names, such as
`mariadb=mysql://root@127.0.0.1:3306/app`.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.orm import Session

from bench.relay import Bench, running
from bench.report import Figures, Say, bench
from outbox_tasks import Message, Outbox
from outbox_tasks.feeds.bridge import bridge
from outbox_tasks.feeds.source import open_source
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.relay import feed_worker_argv
from outbox_tasks.relay.store import Store

WARM = 1.0
EACH, WRITERS = 2, 4
PROCESSES, RATE = 4, 50
DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox_tasks feed'"

AGAIN = """
import sys, time
from outbox_tasks import Settings
from outbox_tasks.feeds.bridge import bridge
from outbox_tasks.feeds.feed_list import FeedList
from outbox_tasks.relay.store import Store
from outbox_tasks.feeds.store import Feeds
store = Store.connect(Settings())
source = FeedList(store).source(sys.argv[1])
while True:
    bridge(Feeds(store), source, store.settings)
    time.sleep(0.05)
"""


class Fed(Bench):
    """A relay with feeds."""

    def feed(self, name: str, url: str, schema: str | None = None) -> Engine:
        """Make the tables. Returns an engine of the application."""
        with closing(open_source(name, url, schema)) as source:
            source.init()
        parsed = make_url(url)
        made = create_engine(
            parsed.set(drivername=DRIVERS.get(parsed.drivername, parsed.drivername)), pool_size=WRITERS
        )
        if parsed.drivername == "sqlite":
            _begin_at_once(made)
        return made

    def know_feeds(self, **feeds: object) -> None:
        """Let the relay and the writers know these feeds."""
        self.settings = self.settings.replace(feeds=feeds, nudge=True)
        self.environment["OUTBOX_FEEDS"] = json.dumps(feeds)

    def copied(self, name: str, url: str, engine: Engine, count: int) -> float:
        """Rows a second."""
        outbox = Outbox(self.settings.replace(nudge=False), feed=name)
        with Session(engine) as session, session.begin():
            outbox.publish_many(session, [Message("order.created", {"id": n}) for n in range(count)])
        with closing(Store.connect(self.settings)) as store, closing(open_source(name, url)) as source:
            started, done = time.perf_counter(), 0
            while done < count:
                done += bridge(Feeds(store), source, self.settings).copied
            return count / (time.perf_counter() - started)

    def waited(self, names: Mapping[str, Engine], rate: float, seconds: float) -> dict[str, list[float]]:
        """Milliseconds from commit to destination, by feed. They take turns."""
        self.stream.delete("bench")
        outboxes = {name: Outbox(self.settings, feed=name) for name in names}
        committed: dict[str, tuple[str, float]] = {}
        began = time.perf_counter()
        for number in range(round(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            name = [*names][number % len(names)]
            with Session(names[name]) as session, session.begin():
                id = outboxes[name].publish(session, "order.created", {"id": 42})
            committed[str(id)] = name, time.time() * 1000
        self.wait_for(lambda: self.stream.xlen("bench") >= len(committed), "the last message has arrived")
        taken: dict[str, list[float]] = {name: [] for name in names}
        entries: Any = self.stream.xrange("bench")
        for entry, fields in entries:
            name, at = committed[fields[b"ce_id"].decode()]
            taken[name].append(max(0.0, int(entry.split(b"-")[0]) + 1 - at))
        return taken

    def written(self, name: str, url: str, engine: Engine, seconds: float, *, copied: bool) -> float:
        """The p99 of a writer's transaction, in milliseconds; `copied`: while a bridge is at work."""
        outbox = Outbox(self.settings.replace(nudge=False), feed=name)
        taken: list[float] = []
        ends = time.perf_counter() + seconds

        def write() -> None:
            while (started := time.perf_counter()) < ends:
                with Session(engine) as session, session.begin():
                    outbox.publish_many(session, [Message("order.created", {"id": 42}, key="a key")] * EACH)
                taken.append((time.perf_counter() - started) * 1000)
                time.sleep(0.02)  # so that the processors have time for all

        writers = [threading.Thread(target=write) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        with self._bridge(name) if copied else nullcontext():
            for writer in writers:
                writer.join()
        with self.engine.begin() as connection:  # the bridge's process was killed
            connection.execute(text("UPDATE outbox_feeds SET locked_until = '-infinity'"))
        with closing(Store.connect(self.settings)) as store, closing(open_source(name, url)) as source:
            bridge(Feeds(store), source, self.settings, longest=60)
        return quantiles(taken, n=100)[98]

    @contextmanager
    def _bridge(self, name: str) -> Iterator[None]:
        """A bridge in a process of its own, again and again."""
        argv = [sys.executable, "-c", AGAIN, name]
        child = self.group.start("bridge", argv, env=self.environment, log=self.directory / "bridge")
        try:
            yield
        finally:
            child.stop()

    @contextmanager
    def bridges(self) -> Iterator[None]:
        """A worker for the feeds alone."""
        argv = [*(word for word in feed_worker_argv(PROCESSES) if word != "-E"), "-l", "WARNING"]
        with self.workers([argv]):
            yield

    def most_connections(self, stop: threading.Event, counts: list[int], engine: Engine) -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not stop.wait(0.1):
                counts.append(int(connection.scalar(text(CONNECTIONS)) or 0))


def _begin_at_once(engine: Engine) -> None:
    """As docs/feeds.md advises for SQLite."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 20000")

    @event.listens_for(engine, "begin")
    def begins(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def frozen() -> Iterator[int]:
    """The port of a server that accepts connections, and says nothing."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        yield int(listening.getsockname()[1])


def _cuts(taken: list[float]) -> dict[str, float]:
    cuts = quantiles(taken, n=100)
    return {"p50 ms": round(cuts[49], 1), "p99 ms": round(cuts[98], 1)}


def one_each(run: Fed, places: dict[str, str], rows: int, rounds: int, seconds: float, say: Say) -> list[Figures]:
    """What is measured of each kind of source."""
    engines = {name: run.feed(name, url) for name, url in places.items()}
    run.know_feeds(**{name: {"url": url} for name, url in places.items()})
    say("the relay drains")
    drained = median(run.drain(rows)["per_second"] for _ in range(rounds))
    copies: dict[str, dict[str, Any]] = {"the relay's drain": {"rows/s": drained}}
    writes: dict[str, dict[str, Any]] = {}
    for name, url in places.items():
        say(f"copies from {name}")
        rate = median(run.copied(name, url, engines[name], rows) for _ in range(rounds))
        copies[name] = {"rows/s": round(rate), "÷ the drain": round(rate / drained, 2)}
        say(f"writers of {name}")
        p99: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(2 * rounds):
            for copied in (False, True):
                p99[copied].append(run.written(name, url, engines[name], seconds / 2, copied=copied))
        alone, beside = median(p99[False]), median(p99[True])
        writes[name] = {"p99 ms": round(beside, 1), "without": round(alone, 1), "÷": round(beside / alone, 2)}
    run.empty()
    waits: dict[str, dict[str, Any]] = {}
    with run.relay(), run.bridges():
        for name, engine in engines.items():
            say(f"latency of {name}")
            run.waited({name: engine}, 10, WARM)
            waits[name] = _cuts(run.waited({name: engine}, 10, seconds)[name])
    return [
        Figures("copied", copies), Figures("commit → destination at 10/s", waits),
        Figures(f"a transaction of {EACH} rows, {WRITERS} writers, beside a bridge", writes),
    ]  # fmt: skip


def many(run: Fed, url: str, count: int, seconds: float, say: Say) -> Figures:
    """Many feeds in one database."""
    own = create_engine(make_url(url).set(drivername=DRIVERS["postgresql"]))
    engines = {}
    with own.begin() as connection:
        for n in range(count + 1):
            connection.execute(text(f"CREATE SCHEMA tenant_{n}"))
    for n in range(count + 1):
        schema = f"tenant_{n}"
        run.feed(schema, url, schema).dispose()
        engines[schema] = own.execution_options(schema_translate_map={None: schema})
    new = engines.popitem()
    with run.engine.begin() as connection:
        connection.execute(text("CREATE TABLE tenants (name text, url text, schema text)"))
        connection.execute(
            text("INSERT INTO tenants SELECT 'tenant_' || n, :url, 'tenant_' || n FROM generate_series(0, :last) n"),
            {"url": url, "last": count - 1},
        )
    run.know_feeds(list="SELECT name, url, schema FROM tenants")
    rows: dict[str, dict[str, Any]] = {}
    connections: list[int] = []
    stop = threading.Event()
    watch = threading.Thread(target=partial(run.most_connections, stop, connections, own))
    with frozen() as port, run.relay(), run.bridges():
        watch.start()
        say(f"{count} feeds")
        run.waited(engines, RATE, 3)
        rows["all are well"] = _cuts([one for taken in run.waited(engines, RATE, seconds).values() for one in taken])
        with run.engine.begin() as connection:
            for name, at in (("frozen", port), ("dead", free_port())):
                connection.execute(
                    text("INSERT INTO tenants VALUES (:name, :url, NULL)"),
                    {"name": name, "url": f"postgresql://{LOOPBACK}:{at}/x"},
                )
        time.sleep(12)
        say("one is frozen, one is dead")
        rows["one is frozen, one is dead"] = _cuts(
            [one for taken in run.waited(engines, RATE, seconds).values() for one in taken]
        )
        say("a new one")
        run.stream.delete("bench")
        name, engine = new
        started = time.perf_counter()
        with run.engine.begin() as connection:
            connection.execute(text("INSERT INTO tenants VALUES (:name, :url, :name)"), {"name": name, "url": url})
        with Session(engine) as session, session.begin():
            Outbox(run.settings, feed=name).publish(session, "order.created", {"id": 42})
        run.wait_for(lambda: run.stream.xlen("bench") > 0, "its message has arrived")
        rows["a new one delivers"] = {"after s": round(time.perf_counter() - started, 1)}
        stop.set()
        watch.join()
    rows["connections to the sources"] = {"at most": max(connections), "processes": PROCESSES}
    first, then = rows["all are well"], rows["one is frozen, one is dead"]
    then["÷ p99"] = round(then["p99 ms"] / first["p99 ms"], 2)
    own.dispose()
    return Figures(f"{count} PostgreSQL feeds, {RATE} messages a second", rows)


@bench
@click.option("--rows", default=20_000, show_default=True, help="Of each backlog that is copied.")
@click.option("--rounds", default=3, show_default=True, help="How often each is copied.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each latency.")
@click.option("--feeds", default=50, show_default=True, help="Feeds under one relay.")
@click.option("--source", "sources", multiple=True, metavar="NAME=URL", help="Another database to copy from.")
def main(say: Say, rows: int, rounds: int, seconds: float, feeds: int, sources: tuple[str, ...]) -> list[Figures]:
    """What feeds cost."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outbox-bench-")))
        run = stack.enter_context(running(Fed, max_connections="200"))
        whole = make_url(str(run.settings.database_url)).set(drivername="postgresql")
        with run.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for name in ("app", "tenants"):
                connection.execute(text(f"CREATE DATABASE {name}"))
        in_database = {n: whole.set(database=n).render_as_string(hide_password=False) for n in ("app", "tenants")}
        others = dict(one.split("=", 1) for one in sources)
        places = {"SQLite": f"sqlite:///{folder / 'app.db'}", "PostgreSQL": in_database["app"], **others}
        places = {name.lower(): url for name, url in places.items()}
        return [
            *one_each(run, places, rows, rounds, seconds, say),
            many(run, in_database["tenants"], feeds, seconds, say),
        ]
