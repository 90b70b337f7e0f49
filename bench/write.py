"""What publishing adds to a transaction of the application, in bulk, and with a broker in trouble.

Each transaction inserts an order, and does one thing more. `a bare call of outbox_write_one` writes the same message by
SQLAlchemy alone: what `publish` takes beyond that is our own code. CPU is that of this thread and of its backend. The
ways take turns, transaction by transaction. A `dead` broker refuses connections, a `silent` one never answers, a `slow`
one answers after half a second. `txoutbox`, if it is installed, runs on asyncpg, for which it is made; and its
statement by SQLAlchemy, as we send ours.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
from celery import Celery
from sqlalchemy import BigInteger, Column, Identity, MetaData, Table, Text, create_engine, insert, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bench.fresh import outbox
from bench.report import Figures, Say, bench
from outbox_tasks import Message, Outbox, Settings
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.servers import EmbeddedValkey
from outbox_tasks.model import uuid7

PAYLOAD = {"id": 42, "customer": "Zoë", "items": [{"sku": "apple", "count": 3}, {"sku": "pear", "count": 1}]}
BODY = json.dumps(PAYLOAD, ensure_ascii=False, separators=(",", ":")).encode()
CALL = """SELECT {schema}.outbox_write_one(:id, 'order.created', 'orders', :payload, 'application/json',
                                       NULL, NULL, NULL, NULL, 0::smallint, false, NULL, NULL)"""
MANY = 10_000
WARM = 200
OWN = "nothing else"
PEER, PEER_OWN = "txoutbox's insert, on asyncpg", "nothing else, on asyncpg"


def task(number: int) -> None:
    """A task of the application."""


def values() -> dict[str, Any]:
    """A message as `publish` stores it."""
    return {"id": uuid7(), "payload": BODY}


Way = Callable[[Session], object]


class Writer:
    """One application with its outbox."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = create_engine(engine_url(str(settings.database_url)))
        self.outbox = Outbox(settings)
        self.call = text(CALL.replace("{schema}", str(settings.database_schema)))
        orders = Table(
            "orders",
            MetaData(schema=settings.database_schema),
            Column("id", BigInteger, Identity(), primary_key=True),
            Column("customer", Text),
        )
        orders.create(self.engine)
        self.order = insert(orders)
        app = Celery("bench", broker="redis://127.0.0.1:1", set_as_current=False)
        self.task = app.task(name="bench.task", shared=False)(task)

    def ways(self) -> dict[str, Way]:
        """What a transaction may do after its own INSERT."""
        publish = partial(self.outbox.publish, event_type="order.created", payload=PAYLOAD)
        return {
            OWN: lambda session: None,
            "SELECT 1": lambda session: session.execute(text("SELECT 1")),
            "a bare call of outbox_write_one": lambda session: session.execute(self.call, values()),
            "publish": publish,
            "publish with a key": partial(publish, key="order:42"),
            "publish with an id": lambda session: publish(session, id=uuid7()),
            "delay of a task": lambda session: self.outbox.delay(session, self.task, 42),
        }

    def transactions(self, session: Session, ways: Mapping[str, Way]) -> dict[str, Callable[[], object]]:
        """Each way in a transaction of its own."""

        def run(way: Way) -> None:
            with session.begin():
                session.execute(self.order, {"customer": "Zoë"})
                way(session)

        return {name: partial(run, way) for name, way in ways.items()}

    def single(self, rounds: int) -> dict[str, dict[str, float]]:
        """Microseconds of a transaction in each way, of this thread's CPU, and of the backend's."""
        with Session(self.engine) as session, peer(self.settings) as others:
            ways = {**self.transactions(session, self.ways() | others.statement), **others.ways}
            backends = [session.scalar(text("SELECT pg_backend_pid()")), *others.backends]
            session.rollback()
            taken: dict[str, list[list[float]]] = {name: [] for name in ways}
            for turn in range(rounds + WARM):
                for name, way in random.sample([*ways.items()], len(ways)):
                    before = time.perf_counter(), time.thread_time(), sum(map(backend_cpu, backends))
                    way()
                    after = time.perf_counter(), time.thread_time(), sum(map(backend_cpu, backends))
                    if turn >= WARM:
                        taken[name].append([(b - a) * 1e6 for a, b in zip(before, after, strict=True)])
        middle = {name: [median(column) for column in zip(*rows, strict=True)] for name, rows in taken.items()}
        titles = "more µs", "more µs of CPU", "more µs of the backend's"
        return {
            name: {"µs": round(medians[0])}
            | {title: round(a - b) for title, a, b in zip(titles, medians, middle[own], strict=True)}
            for name, medians in middle.items()
            for own in [PEER_OWN if name in (PEER, PEER_OWN) else OWN]
        }

    def many(self) -> dict[str, float]:
        """Rows a second of `publish_many`, the best of three."""
        return {
            "Session": max(self._many(self._publish_many) for _ in range(3)),
            "AsyncSession": max(self._many(lambda made: asyncio.run(self._publish_async(made))) for _ in range(3)),
        }

    def _many(self, publish: Callable[[list[Message]], object]) -> float:
        messages = [Message("order.created", PAYLOAD, key="order:42") for _ in range(MANY)]
        started = time.perf_counter()
        publish(messages)
        return MANY / (time.perf_counter() - started)

    def _publish_many(self, messages: list[Message]) -> None:
        with Session(self.engine) as session, session.begin():
            self.outbox.publish_many(session, messages)

    async def _publish_async(self, messages: list[Message]) -> None:
        engine = create_async_engine(self.engine.url.set(drivername="postgresql+asyncpg"))
        async with AsyncSession(engine) as session, session.begin():
            self.outbox.publish_many(session, messages)
        await engine.dispose()

    def nudged(self, rounds: int) -> dict[str, dict[str, float]]:
        """Milliseconds of a transaction that publishes, with brokers of all kinds."""
        with ExitStack() as stack:
            brokers = {
                "alive": stack.enter_context(EmbeddedValkey()).url,
                "dead": f"redis://127.0.0.1:{free_port()}/0",
                "silent": stack.enter_context(answering(None)),
                "slow": stack.enter_context(answering(0.5)),
            }
            outboxes = {"no nudge": self.outbox} | {
                name: Outbox(self.settings.replace(nudge=True, broker_url=url)) for name, url in brokers.items()
            }
            taken: dict[str, list[float]] = {name: [] for name in outboxes}
            with Session(self.engine) as session:
                for turn in range(rounds + WARM):
                    for name, outbox in outboxes.items():
                        started = time.perf_counter()
                        with session.begin():
                            outbox.publish(session, "order.created", PAYLOAD, key="order:42")
                        if turn >= WARM:
                            taken[name].append((time.perf_counter() - started) * 1e3)
        return {
            name: {"p50 ms": round(median(times), 2), "p99 ms": round(quantiles(times, n=100)[98], 2)}
            for name, times in taken.items()
        }


def backend_cpu(pid: int) -> float:
    """Seconds of CPU that a process has had; 0: it does not run here. From `schedstat(5)` of Linux, in nanoseconds."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


@dataclass
class Peer:
    """The transactions of txoutbox, its statement for a session of SQLAlchemy, and the backends that it has."""

    statement: dict[str, Way] = field(default_factory=dict)
    ways: dict[str, Callable[[], object]] = field(default_factory=dict)
    backends: list[int] = field(default_factory=list)


@contextmanager
def peer(settings: Settings) -> Iterator[Peer]:
    """The transactions of txoutbox, if it is installed."""
    if find_spec("txoutbox") is None:
        yield Peer()
        return
    import asyncpg
    from txoutbox.adapters.postgres import PostgresStorage

    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(str(settings.database_url)))
    storage = PostgresStorage(connection, schema=settings.database_schema, table="txoutbox")
    loop.run_until_complete(storage.create_schema())
    theirs = text(
        f"INSERT INTO {settings.database_schema}.txoutbox (topic, key, payload, headers)"
        " VALUES (:topic, :key, :payload, :headers) RETURNING id"
    )
    values = {"topic": "order.created", "key": None, "payload": BODY, "headers": "{}"}
    order = f"INSERT INTO {settings.database_schema}.orders (customer) VALUES ($1)"

    async def run(publish: bool) -> None:
        async with connection.transaction():
            await connection.execute(order, "Zoë")
            if publish:
                await storage.insert(connection, "order.created", PAYLOAD)

    try:
        yield Peer(
            {"txoutbox's INSERT": lambda session: session.execute(theirs, values)},
            {
                PEER_OWN: lambda: loop.run_until_complete(run(False)),
                PEER: lambda: loop.run_until_complete(run(True)),
            },
            [connection.get_server_pid()],
        )
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


@contextmanager
def answering(after: float | None) -> Iterator[str]:
    """A broker that accepts connections and answers each command after so many seconds; None: never."""
    listening = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                kept.append(listening.accept()[0])
            except OSError:
                return
            if after is not None:
                threading.Thread(target=answer, args=(kept[-1],), daemon=True).start()

    def answer(client: socket.socket) -> None:
        while True:
            try:
                if not client.recv(65536):
                    return
                time.sleep(after or 0)
                client.sendall(b"+OK\r\n")
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
    finally:
        listening.close()
        for client in kept:
            client.close()


@bench
@click.option("--rounds", default=2000, show_default=True, help="Transactions in each way.")
def main(say: Say, rounds: int) -> list[Figures]:
    """What publishing costs the application."""
    routed: dict[str, Any] = {
        "destinations": {"orders": {"url": "redis+stream://localhost"}, "tasks": {"url": "celery://"}}
    }
    with outbox(nudge=False, routes={"order.*": ["orders"]}, **routed) as settings:
        run = Writer(settings)
        say("one transaction")
        single = run.single(rounds)
        say("publish_many")
        many = {f"publish_many, {name}": {"rows/s": round(rate)} for name, rate in run.many().items()}
        say("brokers in trouble")
        nudged = {f"broker: {name}": times for name, times in run.nudged(rounds).items()}
    return [
        Figures("a transaction that inserts an order, and", single),
        Figures("in bulk", many),
        Figures("transaction with one publish", nudged),
    ]
