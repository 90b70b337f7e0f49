"""What the tests share: real servers, and for each test a database schema and a stream of its own.

The servers are those of OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL where these are set, else embedded ones. On
either, a test touches nothing but what it made itself. The factories `settings` and `new_store` take what
differs from the usual settings.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import hypothesis
import psycopg
import pytest
import redis
from sqlalchemy import Connection, Engine, create_engine, func, select

from outbox_tasks.broker.names import STAMP
from outbox_tasks.database.engine import engine_url
from outbox_tasks.local.servers import EmbeddedPostgres, EmbeddedValkey
from outbox_tasks.migrations import upgrade
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.rows import Rows as Rows
from tests.rows import seconds_from_now as seconds_from_now
from tests.schemas import Schemas, new_name
from tests.weekly import is_weekly

GIVEN = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OUTBOX_")}
"""The settings of whoever runs the tests; no test may see them but through the fixtures."""

# No deadline: a busy machine takes its time. A random search is a command of its own, `make search`: whoever runs the
# tests gets the same examples each time.
at_random = "MACHINE_EXAMPLES" in os.environ
hypothesis.settings.register_profile("outbox", hypothesis.settings(), deadline=None, derandomize=not at_random)
hypothesis.settings.load_profile("outbox")

# The tests start hundreds of Python processes, and each would compile what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts commands in the background deaf to Ctrl-C, and their children are deaf too.
signal.signal(signal.SIGINT, signal.default_int_handler)

EMPTY = range(15, 0, -1)
"""Databases of the Redis server that may be ours."""

LONG = (
    "test_protocol_machine", "test_model", "test_pages", "test_every_publisher", "test_feeds", "test_web_browser",
    "test_typing", "test_delivery", "test_killed_worker", "test_local", "test_watched",
)  # fmt: skip
"""Modules that take so long that the other processes would wait for them at the end."""

TOGETHER = {
    "RabbitMQ": ("test_every_publisher.py", "test_kombu_queue.py", "test_rabbitmq.py", "test_rabbitmq_site.py"),
    "MySQL": ("test_django_mysql.py", "test_inbox_everywhere.py", *(
        f"test_feed_{part}.py" for part in ("languages", "source_trouble", "sources", "writers")
    )),
}  # fmt: skip
"""Modules that run in one process, so that a server starts once."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The weekly tests are marked. What takes long comes first."""
    for item in items:
        if is_weekly(item.nodeid):
            item.add_marker("weekly")
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded meanwhile stays: the garbage collector need not look at all of it again and again. Thousands of
    tests leave much that stays too, so it looks less often."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    gc.enable()
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Six processes at most, each with servers of its own: many of the tests wait more than they compute. Servers
    that were given can't be divided: tests on them look at all that is there, to see that nothing is left behind."""
    return 0 if GIVEN else min(6, 3 * (os.cpu_count() or 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((server for server, files in TOGETHER.items() if file.endswith(files)), file)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until the condition is true; returns its value. The limit is long, for machines that are overloaded. Who
    looks all the time takes the time from whom it waits for: a look that takes long is followed by a longer wait, and
    who has waited long looks less often."""
    first = time.monotonic()
    deadline = first + seconds
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        ended = time.monotonic()
        assert ended < deadline, f"it did not become true within {seconds:g} s"
        time.sleep(min(max(0.01, 4 * (ended - began), (ended - first) / 20), 0.2))


class MakeSettings(Protocol):
    def __call__(self, **values: Any) -> Settings: ...


class MakeStore(Protocol):
    def __call__(self, **values: Any) -> Store: ...


class Stream:
    """The Redis Stream of a test: what it holds is what was delivered."""

    def __init__(self, redis_url: str, name: str) -> None:
        self.name = name
        parts = urlsplit(redis_url)
        self.url = f"{parts.scheme}+stream://{parts.netloc}/{parts.path.strip('/') or 0}/{name}"
        self.client = redis.Redis.from_url(redis_url)

    def entries(self) -> list[dict[str, bytes]]:
        """The fields of every entry, in order."""
        found: list[tuple[bytes, dict[bytes, bytes]]] = self.client.xrange(self.name)  # type: ignore[assignment]
        return [{name.decode(): value for name, value in fields.items()} for _, fields in found]

    def ids(self) -> list[str]:
        """The message id of every entry, in order, duplicates and all."""
        return [entry["ce_id"].decode() for entry in self.entries()]

    def __len__(self) -> int:
        return int(self.client.xlen(self.name))


@contextmanager
def own_stream(redis_url: str) -> Iterator[Stream]:
    made = Stream(redis_url, f"outbox_test_{uuid4().hex[:12]}")
    yield made
    made.client.delete(made.name)
    made.client.close()


schemas = cache(Schemas)


@contextmanager
def own_schema(engine: Engine) -> Iterator[str]:
    """The name of a database schema; not made yet, and gone afterwards."""
    name = new_name()
    yield name
    schemas(engine).end(name)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if url := GIVEN.get("OUTBOX_DATABASE_URL"):
        yield url
    else:
        # Nobody kills it, so it need not wait for the disk. Thousands of connections prove their password.
        with EmbeddedPostgres(settings={"max_prepared_transactions": "10", "fsync": "off"}) as server:
            with psycopg.connect(server.url) as connection:
                connection.execute("SET scram_iterations = 1")
                connection.execute(f"ALTER ROLE outbox PASSWORD '{urlsplit(server.url).password}'".encode())
            yield server.url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    if url := GIVEN.get("OUTBOX_BROKER_URL"):
        yield url
    else:
        with EmbeddedValkey() as server:
            yield server.url


@pytest.fixture(scope="session")
def mariadb() -> Iterator[str]:
    """The URL of a MariaDB server, whose superuser needs no password."""
    from tests.mysql_servers import MariaDB

    with MariaDB() as server:
        yield server.url


@pytest.fixture(scope="session")
def mysql() -> Iterator[str]:
    """The same of a MySQL server."""
    from tests.mysql_servers import MySQL

    with MySQL() as server:
        yield server.url


@pytest.fixture(scope="module")
def broker_url(redis_url: str) -> Iterator[str]:
    """A database of the Redis server that was empty, and is emptied again: Celery's queues are named alike."""
    for number in EMPTY:
        url = urlsplit(redis_url)._replace(path=f"/{number}").geturl()
        with redis.Redis.from_url(url) as client:
            if not client.dbsize():
                yield url
                client.flushdb()
                return
    pytest.fail("no Redis database is empty")


@pytest.fixture
def own_redis() -> Iterator[EmbeddedValkey]:
    """A Redis-compatible server that the test may kill."""
    with EmbeddedValkey() as server:
        yield server


@pytest.fixture(scope="session")
def engine(postgres_url: str) -> Iterator[Engine]:
    """The application's engine."""
    made = create_engine(engine_url(postgres_url), pool_size=20)
    yield made
    made.dispose()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """A connection of the application, in no transaction yet."""
    with engine.connect() as made:
        yield made


@pytest.fixture
def stream(redis_url: str) -> Iterator[Stream]:
    """Where the destination `orders` delivers to."""
    with own_stream(redis_url) as made:
        yield made


@pytest.fixture
def schema(engine: Engine) -> Iterator[str]:
    """The name of a database schema for this test alone; not made yet, and dropped afterwards."""
    with own_schema(engine) as name:
        yield name


@pytest.fixture
def settings(postgres_url: str, redis_url: str, schema: str, stream: Stream) -> MakeSettings:
    """Makes settings with one destination, `orders`, the test's stream; the tables are not made yet."""
    with redis.Redis.from_url(redis_url) as client:
        client.delete(STAMP)  # that of an earlier test's outbox

    def make(**values: Any) -> Settings:
        mine = {
            "database_url": postgres_url,
            "broker_url": redis_url,
            "database_schema": schema,
            "destinations": {"orders": {"url": stream.url}},
        }
        return Settings(**{**mine, **values})

    return make


def make_tables(engine: Engine, schema: str) -> None:
    """Make migrated tables in a schema. pg_dump may not know the release of a server that was given."""
    with engine.begin() as connection:
        if GIVEN or connection.scalar(select(func.to_regnamespace(schema))):
            upgrade(connection, schema)
            return
    schemas(engine).make(schema)


@pytest.fixture
def new_store(settings: MakeSettings, engine: Engine, schema: str) -> Iterator[MakeStore]:
    """Makes stores, over tables that are migrated."""
    make_tables(engine, schema)
    made: list[Store] = []

    def make(**values: Any) -> Store:
        made.append(Store.connect(settings(**values)))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(new_store: MakeStore) -> Store:
    """A store over migrated tables."""
    return new_store()


@pytest.fixture
def rows(new_store: MakeStore, engine: Engine, schema: str) -> Rows:
    """The rows of the test's migrated outbox."""
    return Rows(engine, schema)
