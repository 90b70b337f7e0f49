"""What one destination in trouble costs a healthy one: the time from commit to destination.

One relay with four publish processes; ten messages a second to the healthy destination. Beside it, in turn: nothing,
then a destination that is *dead* (it takes connections and never answers), *slow* (each send takes 3 s), one that is
flooded with a backlog, one that refuses all of 10,000 messages for good (*poison*), and one that asks to retry all of
10,000 (*busy*). Each has had some messages before. The servers are embedded ones.

The last three take all the CPU there is. The row *loaded machine* shows what that alone does: a process that only
computes for each core, and one more.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from statistics import quantiles
from typing import Any

import click
import redis
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from bench import storage
from bench.report import Figures, Say, bench
from outbox_tasks import Message, Outbox, Settings
from outbox_tasks.database.connection import engine_url, migrating
from outbox_tasks.local.ports import free_port
from outbox_tasks.local.relay_processes import Relay
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade

LOADED = "loaded machine"
RATE = 10
PROCESSES = 4
PATIENCE = 120.0
TROUBLES = {"dead": 2_000, "slow": 2_000, "flood": 200_000, "poison": 10_000, "busy": 10_000}
"""The destinations in trouble, and how many messages are due for each."""

WARMED = ("flood", "poison", "busy")
"""Those whose first messages are sent before: a process that has never sent there connects first."""

WARM = 1_000

TEXT = """'{"id": ' || n || '}'"""
GONE = """DELETE FROM outbox_PLACE WHERE ctid = ANY (ARRAY(
          SELECT ctid FROM outbox_PLACE LIMIT 10000 FOR UPDATE SKIP LOCKED))"""
LEFT = "SELECT count(*) FROM outbox_at_work WHERE destination = :name AND place <> 'dead'"


@contextmanager
def answering(status: str, wait: float) -> Iterator[int]:
    """An HTTP server that answers everything alike, after a while. Yields its port.

    In a process of its own: in this one it would slow down the writers and the measurement.
    """
    port, spawning = free_port(), multiprocessing.get_context("spawn")
    server = spawning.Process(target=answer, args=(port, status, wait), daemon=True)
    server.start()
    try:
        wait_for(lambda: is_listening(port), "the server answers")
        yield port
    finally:
        server.kill()
        server.join()


def answer(port: int, status: str, wait: float) -> None:
    """Runs in that process."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                await asyncio.sleep(wait)
                writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(converse, "127.0.0.1", port) as server:
            await server.serve_forever()

    asyncio.run(serve())


def is_listening(port: int) -> bool:
    """Whether a port of this machine takes connections."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def computing() -> Iterator[None]:
    """Processes that take all CPU."""
    spawning = multiprocessing.get_context("spawn")
    hogs = [spawning.Process(target=compute, daemon=True) for _ in range((os.cpu_count() or 1) + 1)]
    for hog in hogs:
        hog.start()
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.join()


def compute() -> None:
    """Runs in each of them."""
    while True:
        pass


@contextmanager
def silent() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", free_port()))
        listening.listen(1000)
        yield listening.getsockname()[1]


class Fairness:
    """A relay and its destinations."""

    def __init__(self, settings: Settings, engine: Engine, stream: redis.Redis, seconds: float) -> None:
        self.outbox = Outbox(settings)
        self.engine = engine
        self.stream = stream
        self.seconds = seconds

    def latency(self, trouble: str | None) -> dict[str, Any]:
        """Milliseconds from commit to the healthy destination, while another one is in trouble."""
        self.stream.delete("healthy")
        if trouble in WARMED:
            with Session(self.engine) as session, session.begin():
                self.outbox.publish_many(session, [Message("order.created", {}, to=trouble) for _ in range(WARM)])
            wait_for(lambda: self._left(trouble, untried=True) == 0, "each process has sent there")
        if trouble:
            with self.engine.begin() as connection:
                storage.write(connection, TROUBLES[trouble], destination=f"'{trouble}'", text=TEXT)
            with Session(self.engine) as session, session.begin():  # wakes the claim, as a commit does
                self.outbox.publish(session, "order.created", {}, to=trouble)
            before = self._left(trouble)
        committed = {}
        for _ in range(int(RATE * self.seconds)):
            with Session(self.engine) as session, session.begin():
                message_id = self.outbox.publish(session, "order.created", {"id": 42}, to="healthy")
            committed[str(message_id)] = time.time() * 1000
            time.sleep(1 / RATE)
        during = before - self._left(trouble) if trouble else 0
        wait_for(lambda: self.stream.xlen("healthy") >= len(committed), "the last message has arrived")
        entries: Any = self.stream.xrange("healthy")
        # An entry's id is the millisecond of its arrival, rounded down.
        taken = [max(0.0, int(n.split(b"-")[0]) + 1 - committed[fields[b"ce_id"].decode()]) for n, fields in entries]
        cuts = quantiles(taken, n=100)
        self._clear()
        return {
            "p50 ms": round(cuts[49], 1),
            "p99 ms": round(cuts[98], 1),
            "max ms": round(max(taken), 1),
            "of it done meanwhile": during,
        }

    def _left(self, destination: str, *, untried: bool = False) -> int:
        query = LEFT + (" AND attempts = 0" if untried else "")
        with self.engine.connect() as connection:
            return int(connection.execute(text(query), {"name": destination}).scalar_one())

    def _clear(self) -> None:
        """Clear up: one trouble must not disturb the next one."""
        until = time.monotonic() + 12  # as long as a send that hangs
        while time.monotonic() < until:
            with self.engine.begin() as connection:
                gone = sum(
                    connection.execute(text(GONE.replace("PLACE", place))).rowcount for place in storage.PLACES[1:]
                )
            time.sleep(0 if gone else 0.5)
        with self.engine.begin() as connection:
            connection.execute(text("DELETE FROM outbox_destinations"))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:g} s in vain until {what}")
        time.sleep(0.01)


@contextmanager
def running(seconds: float) -> Iterator[Fairness]:
    """The servers, the destinations and the relay."""
    with ExitStack() as stack:
        postgres, valkey = stack.enter_context(EmbeddedPostgres()), stack.enter_context(EmbeddedValkey())
        stream = valkey.url.replace("redis://", "redis+stream://").rsplit("/", 1)[0] + "/1/"
        ports = {
            "dead": stack.enter_context(silent()),
            "slow": stack.enter_context(answering("204 No Content", 3)),
            "poison": stack.enter_context(answering("400 Bad Request", 0)),
            "busy": stack.enter_context(answering("429 Too Many Requests", 0)),
        }
        destinations = {name: {"url": f"{stream}{name}"} for name in ("healthy", "flood")}
        destinations |= {
            name: {"url": f"http://127.0.0.1:{port}/?outbox_private=allow"} for name, port in ports.items()
        }
        settings = Settings(database_url=postgres.url, broker_url=valkey.url, destinations=destinations)
        with migrating(settings) as connection:
            upgrade(connection)
        environment = {
            **os.environ,
            "OUTBOX_DATABASE_URL": postgres.url,
            "OUTBOX_BROKER_URL": valkey.url,
            "OUTBOX_DESTINATIONS": json.dumps(destinations),
        }
        stack.enter_context(Relay(environment, publishers=1, concurrency=PROCESSES))
        at = redis.Redis.from_url(valkey.url.rsplit("/", 1)[0] + "/1")
        run = Fairness(settings, create_engine(engine_url(postgres.url)), at, seconds)
        run.latency(None)  # warm
        yield run


@bench
@click.option("--seconds", default=20.0, help="Of each trouble.")
@click.option("--only", multiple=True, type=click.Choice(list(TROUBLES)), help="Not all of them.")
def main(say: Say, seconds: float, only: tuple[str, ...]) -> list[Figures]:
    """What one destination in trouble costs the others."""
    figures: dict[str, dict[str, Any]] = {}
    with running(seconds) as run:
        for name in ("undisturbed", *(only or TROUBLES), LOADED, "undisturbed again"):
            say(name)
            with computing() if name == LOADED else nullcontext():
                figures[name] = run.latency(name if name in TROUBLES else None)
    calm = max(figures[name]["p99 ms"] for name in ("undisturbed", "undisturbed again"))
    for found in figures.values():
        found["p99 ratio"] = round(found["p99 ms"] / calm, 2)
    return [Figures("beside", figures, f"{RATE} healthy messages a second, {PROCESSES} publish processes")]
