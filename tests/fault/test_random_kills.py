"""kill -9 of anything at any time, while messages are written and drained: no loss, no duplicate without a cause."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox_tasks import Outbox
from outbox_tasks.database.connection import engine_url
from outbox_tasks.local.servers import EmbeddedValkey
from tests.acceptance.nodes import Beat, Relay, Worker
from tests.conftest import Stream, eventually
from tests.fault.conftest import OwnDatabase, check

BATCH = 50
SEED = 20_260_801
PAUSE = (0.3, 1.2)
"""Seconds between two kills."""


class Writer(threading.Thread):
    """The application: commits messages, and notes which, whatever happens to its database."""

    def __init__(self, relay: Relay) -> None:
        super().__init__(daemon=True)
        self.enough = threading.Event()
        self.committed: list[str] = []
        self.unknown: list[str] = []
        """Their commit was cut off: nobody can say whether it happened, but the database."""
        self._engine = create_engine(engine_url(relay.settings.database_url or ""), pool_pre_ping=True)
        self._outbox = Outbox(relay.settings)

    def run(self) -> None:
        while not self.enough.is_set():
            made: list[str] = []
            try:
                with Session(self._engine) as session, session.begin():
                    made = [str(self._outbox.publish(session, "order.created", {}, to="orders")) for _ in range(BATCH)]
            except DBAPIError:
                self.unknown += made
                time.sleep(0.1)
            else:
                self.committed += made
                time.sleep(0.03)  # so that it goes on while things are killed
        self._engine.dispose()


class Killer:
    """Kills one process of a kind, and sees to it that it comes back as under a supervisor."""

    def __init__(self, relay: Relay, database: OwnDatabase, broker: EmbeddedValkey, chance: random.Random) -> None:
        self._database, self._broker, self._chance = database, broker, chance
        self._claims = [relay.claim(f"claim{n}") for n in range(2)]
        self._publishers = [relay.publish(n, concurrency=2) for n in range(2)]
        self._beat = relay.beat()
        self.kinds: list[Callable[[], None]] = [
            lambda: self._node(chance.choice(self._claims)),
            lambda: self._node(chance.choice(self._publishers)),
            lambda: self._node(self._beat),
            self._child,
            self._backend,
            self._redis,
        ]

    def supervise(self) -> None:
        """Start again what has ended by itself: Celery's worker does, when a child is killed while the pool starts."""
        for node in (*self._claims, *self._publishers, self._beat):
            if node.container.status == "exited":
                node.container.restart()

    def _node(self, node: Worker | Beat) -> None:
        node.kill()
        node.container.restart()

    def _child(self) -> None:
        with suppress(psutil.NoSuchProcess, IndexError):
            self._chance.choice(self._chance.choice(self._publishers).container.pool()).kill()

    def _backend(self) -> None:
        """PostgreSQL then ends all its processes, and recovers from its log."""
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'outbox_tasks' ORDER BY pid"
        with suppress(DBAPIError), self._database.engine.connect() as connection:
            pids = list(connection.scalars(text(query)))
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(pids), signal.SIGKILL)

    def _redis(self) -> None:
        self._broker.kill()
        self._broker.start()


@pytest.mark.timeout(420)
def test_nothing_is_lost_and_every_duplicate_has_a_cause(
    relay_on_own: Relay,
    database: OwnDatabase,
    own_redis: EmbeddedValkey,
    stream: Stream,
) -> None:
    chance = random.Random(SEED)
    killer = Killer(relay_on_own, database, own_redis, chance)
    relay_on_own.ready()
    writer = Writer(relay_on_own)
    writer.start()
    eventually(lambda: len(stream), 60)
    rounds = [kind for _ in range(2) for kind in chance.sample(killer.kinds, len(killer.kinds))]
    for kill in rounds:
        time.sleep(chance.uniform(*PAUSE))
        kill()
        killer.supervise()
    before = len(writer.committed)
    eventually(lambda: len(writer.committed) > before + 2 * BATCH, 60)  # the database is back after the last kill
    writer.enough.set()
    writer.join(60)
    assert not writer.is_alive()
    eventually(lambda: killer.supervise() or not database.rows.pending(), 180)
    stored = {str(row.id) for row in database.rows.archived()}
    committed = [*writer.committed, *(id for id in writer.unknown if id in stored)]
    repeated = check(database.rows, stream, committed)
    assert len(writer.committed) > BATCH * len(rounds)
    print(json.dumps({"committed": len(committed), "repeated": repeated, "kills": len(rounds)}))
