"""Databases of applications, with the tables of a feed and of an inbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pymysql
import pytest
from kombu import Connection as BrokerConnection
from kombu import Queue
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outbox_tasks import migrations
from outbox_tasks.broker.names import FEED_TASK
from outbox_tasks.feeds.source import Source, open_source
from outbox_tasks.settings import FEED_QUEUE
from tests.integration.own_database import own_database
from tests.integration.sessions import configure_django

DIALECTS = ("sqlite", "postgresql", "mariadb", "mysql")

ASYNC_CLIENTS = {"sqlite": "aiosqlite", "postgresql": "asyncpg", "mysql": "aiomysql", "mariadb": "aiomysql"}


class Place:
    """A database. `postgres` is any PostgreSQL: Django's default, for the other tests of the process."""

    def __init__(self, engine: Engine, postgres: str) -> None:
        self.engine = engine
        self.dialect = engine.dialect.name
        self.url = engine.url.set(drivername=self.dialect).render_as_string(hide_password=False)
        self._postgres = postgres
        self._opened: list[Any] = []

    def source(self, timeout: float = 5.0) -> Source:
        self._opened.append(source := open_source("eu", self.url, timeout=timeout))
        return source

    def connect(self, *, wait: float = 5) -> Any:
        """A connection of an application's plain driver, which begins transactions by itself."""
        url = self.engine.url
        if self.dialect == "sqlite":
            path = str(url.database)
            connection: Any = sqlite3.connect(path, timeout=wait, isolation_level="IMMEDIATE", check_same_thread=False)
            connection.execute("PRAGMA synchronous = NORMAL")
        elif self.dialect == "postgresql":
            connection = psycopg.connect(self.url)
        else:
            login = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
            connection = pymysql.connect(**login, charset="utf8mb4")  # type: ignore[arg-type]
            run(connection, f"SET SESSION innodb_lock_wait_timeout = {wait:.0f}")
        self._opened.append(connection)
        return connection

    def write(self, connection: Any, key: str | None = None, message: str = "{}") -> str:
        """Insert a row; returns its id."""
        id = str(uuid4())
        sql = "INSERT INTO outbox_feed (id, ordering_key, message) VALUES (%s, %s, %s)"
        run(connection, sql.replace("%s", "?") if self.dialect == "sqlite" else sql, (id, key, message))
        return id

    def asynchronous(self) -> AsyncEngine:
        made = create_async_engine(self.engine.url.set(drivername=f"{self.dialect}+{ASYNC_CLIENTS[self.dialect]}"))
        if self.dialect == "sqlite":
            begin_at_once(made.sync_engine)
        return made

    def django(self) -> Any:
        """Django's connection, of this thread."""
        configure_django(self._postgres)
        from django.db import connections

        url = self.engine.url
        engine = {"sqlite": "sqlite3", "mariadb": "mysql"}.get(self.dialect, self.dialect)
        given = {"ENGINE": f"django.db.backends.{engine}", "NAME": url.database, "USER": url.username or ""}
        given |= {"PASSWORD": url.password or "", "HOST": url.host or "", "PORT": url.port or ""}
        if self.dialect == "sqlite":
            given["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
        if self.dialect in ("mysql", "mariadb"):
            pymysql.install_as_MySQLdb()
        alias = f"place {url.port} {url.database}"
        connections.settings[alias] = connections.configure_settings({"default": {}, alias: given})[alias]
        return connections[alias]

    @cached_property
    def reader(self) -> Engine:
        """Reads what is committed, beside a transaction that writes."""
        return create_engine(self.engine.url) if self.dialect == "sqlite" else self.engine

    def make(self) -> None:
        """The tables."""
        with self.engine.begin() as connection:
            migrations.upgrade_feed(connection)

    def execute(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    @contextmanager
    def user(self) -> Iterator[URL]:
        """How a user without any right logs in."""
        role, name = "ROLE" if self.dialect == "postgresql" else "USER", f"reader_{uuid4().hex[:8]}"
        login = "LOGIN PASSWORD" if role == "ROLE" else "IDENTIFIED BY"
        self.execute(f"CREATE {role} {name} {login} 'secret'")
        yield self.engine.url.set(username=name, password="secret")
        self.execute(*([f"DROP OWNED BY {name}"] if role == "ROLE" else []), f"DROP {role} {name}")

    def rows(self) -> list[Any]:
        """What is in the feed, by number."""
        with self.reader.connect() as connection:
            return list(connection.execute(text("SELECT * FROM outbox_feed ORDER BY number")).all())

    def clear(self) -> None:
        """End what a test has left, and empty the tables."""
        while self._opened:
            with suppress(pymysql.Error):  # it is closed already, or was killed
                self._opened.pop().close()
        self.execute("DELETE FROM outbox_feed", "DELETE FROM outbox_inbox")


def run(connection: Any, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall()) if cursor.description else []


def ids(source: Source, most: int = 1000) -> list[str]:
    return [row.id for row in source.look(most)]


def woken_feeds(broker_url: str) -> list[str]:
    """The feeds whose tasks wait; takes the tasks."""
    with BrokerConnection(broker_url) as connection:
        queue = Queue(FEED_QUEUE)(connection.channel())
        waiting = list(iter(lambda: queue.get(no_ack=True), None))
    assert {task.headers["task"] for task in waiting} <= {FEED_TASK}
    return [task.payload[0][0] for task in waiting]


def begin_at_once(engine: Engine) -> None:
    """Let SQLAlchemy begin SQLite's transactions, as writers: as docs/feeds.md advises."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 20000")

    @event.listens_for(engine, "begin")
    def begins(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def own_place(dialect: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A database of this dialect, with the tables, for a module of tests. Skips if there is no such server."""
    postgres: Engine = request.getfixturevalue("engine")
    with ExitStack() as stack:
        if dialect == "postgresql":
            engine = stack.enter_context(own_database(postgres)).engine
        elif dialect == "sqlite":
            engine = sqlite_engine(folder / "app.db")
        else:
            engine = stack.enter_context(mysql_engine(request.getfixturevalue(dialect)))
        stack.callback(engine.dispose)
        place = Place(engine, postgres.url.render_as_string(hide_password=False))
        place.make()
        yield place


@contextmanager
def mysql_engine(url: str) -> Iterator[Engine]:
    """An engine on a database of its own, on this server."""
    name = f"outbox_test_{uuid4().hex[:12]}"
    whole = make_url(url)
    root = create_engine(whole.set(drivername=f"{whole.drivername}+pymysql"), isolation_level="AUTOCOMMIT")
    with root.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield create_engine(root.url.set(database=name), pool_size=20)
        connection.execute(text(f"DROP DATABASE {name}"))
    root.dispose()


def sqlite_engine(file: Path) -> Engine:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    engine = create_engine(f"sqlite:///{file}")
    begin_at_once(engine)
    return engine


@pytest.fixture(scope="module", params=DIALECTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with own_place(request.param, tmp_path_factory.mktemp("place"), request) as place:
        with closing(place.source()) as source:
            source.init()
        yield place


@pytest.fixture
def place(made: Place) -> Iterator[Place]:
    made.clear()
    yield made
    made.clear()


@pytest.fixture
def source(place: Place) -> Source:
    return place.source()


@pytest.fixture
def overlapping(place: Place) -> Place:
    """A database in which transactions overlap."""
    if place.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    return place
