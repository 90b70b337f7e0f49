"""A relay for each test, with short leases, and with servers that the test may kill.

The destination's Redis is never killed: it is where the tests count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from sqlalchemy import Connection, Engine, create_engine, text

from lab.trace import Trace
from outbox_tasks.broker.broker import Broker
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.relay.claim import Pace, Tally, claim
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import DRAIN_QUEUE, PUBLISH_QUEUE
from tests.acceptance.nodes import Relay
from tests.acceptance.publishers import SCHEME, distribution
from tests.conftest import Rows, Stream, eventually

SHORT = {
    "claim_interval": 0.5,
    "statement_timeout": 1,
    "send_timeout": 1,
    "queue_lease": 5,
    "backoff_base": 0.2,
    "backoff_cap": 1,
}
"""What a killed process held comes back after 7.5 seconds."""

UNHURRIED = {"statement_timeout": 10, "send_timeout": 10}
"""No begun lease and no time limit ends, even on a very busy machine. A lease in the queue still ends soon."""

CALM = {**UNHURRIED, "queue_lease": 100}
"""No lease ends at all."""

MANY = 400
SLOW = {"singles": "all"}
"""The relay's settings for `slow_messages`."""


@contextmanager
def traced(engine: Engine, schema: str) -> Iterator[None]:
    """Whatever happens inside, each message only makes the moves of the protocol."""
    trace = Trace(engine, schema)
    trace.install()
    yield
    found = trace.check()
    assert not found.wrong, str(found)


@pytest.fixture
def rows(rows: Rows, schema: str) -> Iterator[Rows]:
    """As for all tests, but traced."""
    with traced(rows.engine, schema):
        yield rows


@pytest.fixture
def values(postgres_url: str, schema: str, own_redis: EmbeddedValkey, stream: Stream) -> dict[str, Any]:
    """The settings of the test's relay; its broker is the test's own to kill."""
    return {
        **SHORT,
        "database_url": postgres_url,
        "database_schema": schema,
        "broker_url": own_redis.url,
        "destinations": destinations(stream),
    }


def destinations(stream: Stream) -> dict[str, Any]:
    """`orders`: the stream; `told`: the same stream, through a publisher that does as the payload says."""
    return {"orders": {"url": stream.url}, "told": {"url": stream.url.replace("redis+stream", SCHEME)}}


@pytest.fixture
def relay(rows: Rows, values: dict[str, Any], tmp_path: Path) -> Iterator[Relay]:
    """Starts the processes of a relay over migrated tables."""
    made = Relay(tmp_path, values, distribution(tmp_path / "plugins"))
    yield made
    made.close()


class Here:
    """The hops of the relay, made in the test's own process."""

    def __init__(self, relay: Relay) -> None:
        self.store = Store.connect(relay.settings)
        app = Celery(broker=relay.settings.broker_url, set_as_current=False)
        self.broker = Broker(app, relay.settings)

    def claim(self) -> Tally:
        """Claim what is due, and hand it to the relay's publish workers."""
        return claim(self.store, self.broker.send, self.broker.queued, Pace(self.store.settings.destinations))


@pytest.fixture
def here(relay: Relay) -> Iterator[Here]:
    made = Here(relay)
    yield made
    made.broker.app.close()
    made.store.close()


class OwnDatabase:
    """The outbox of a PostgreSQL that the test may kill."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self.engine = create_engine(engine_url(server.url), pool_pre_ping=True)
        self.schema = f"outbox_test_{uuid4().hex[:12]}"
        with self.engine.begin() as connection:
            upgrade(connection, self.schema)
        self.rows = Rows(self.engine, self.schema)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL for the tests of a module, which may kill it."""
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture
def database(own_postgres: EmbeddedPostgres) -> Iterator[OwnDatabase]:
    own_postgres.start()  # if a test has failed
    made = OwnDatabase(own_postgres)
    with traced(made.engine, made.schema):
        yield made
    made.engine.dispose()


@pytest.fixture
def relay_on_own(database: OwnDatabase, values: dict[str, Any], tmp_path: Path) -> Iterator[Relay]:
    """Like `relay`, on the database that the test may kill."""
    theirs = {**values, "database_url": database.server.url, "database_schema": database.schema}
    made = Relay(tmp_path, theirs, distribution(tmp_path / "plugins"))
    yield made
    made.close()


@contextmanager
def archive_locked(engine: Engine, schema: str) -> Iterator[Connection]:
    """Inside, nobody can settle a sent message."""
    with engine.connect() as connection:
        connection.execute(text(f"LOCK TABLE {schema}.outbox_journal IN ACCESS EXCLUSIVE MODE"))
        yield connection
        connection.rollback()


def waiting_for_locks(engine: Engine, schema: str) -> set[int]:
    """The server's processes that wait for a lock, for relays that work on tables of this schema."""
    ours = "SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE l.pid = a.pid AND relnamespace = n.oid"
    query = (
        "SELECT a.pid FROM pg_stat_activity a, pg_namespace n WHERE application_name = 'outbox_tasks' "
        f"AND wait_event_type = 'Lock' AND nspname = :schema AND EXISTS ({ours})"
    )
    with engine.connect() as connection:
        return set(connection.scalars(text(query), {"schema": schema}))


def queued(redis: EmbeddedValkey) -> int:
    """Celery messages that wait for publish workers."""
    with Stream(redis.url, PUBLISH_QUEUE).client as client:
        return int(client.llen(PUBLISH_QUEUE)) + int(client.llen(DRAIN_QUEUE))


def slow_messages(rows: Rows) -> list[str]:
    """Messages that take two workers about four seconds and hardly any work, so a fault soon hits in the middle."""
    return rows.insert(MANY, destination="told", payload=json.dumps({"nap": 0.02}).encode())


def in_the_middle(stream: Stream) -> None:
    """Wait until some of them have arrived."""
    before = len(stream)
    eventually(lambda: len(stream) > before + MANY / 20)


def drained(rows: Rows, seconds: float = 120.0) -> None:
    """Wait until nothing is left to be sent."""
    eventually(lambda: not rows.pending(), seconds)


def check(rows: Rows, stream: Stream, committed: list[str]) -> int:
    """Every committed message was delivered, no other was, and each duplicate has a cause. Counts the duplicates."""
    delivered = Counter(stream.ids())
    assert set(delivered) == set(committed)
    causes = {str(row.id): (row.state, row.last_error_code) for row in rows.shown()}
    repeated = {id for id, count in delivered.items() if count > 1}
    assert not [(id, causes[id]) for id in repeated if causes[id][1] is None]
    assert {causes[id][0] for id in committed} == {"sent"}
    return delivered.total() - len(committed)
