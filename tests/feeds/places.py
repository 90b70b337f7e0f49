"""Databases of applications, with the tables of a feed and of an inbox."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outbox_tasks import migrations
from tests.integration.own_database import own_database
from tests.integration.sessions import configure_django

DIALECTS = ("sqlite", "postgresql", "mariadb", "mysql")

ASYNC_CLIENTS = {"sqlite": "aiosqlite", "postgresql": "asyncpg", "mysql": "aiomysql", "mariadb": "aiomysql"}


@dataclass
class Place:
    """A database. `postgres` is any PostgreSQL: Django's default, for the other tests of the process."""

    engine: Engine
    postgres: str

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    def asynchronous(self) -> AsyncEngine:
        made = create_async_engine(self.engine.url.set(drivername=f"{self.dialect}+{ASYNC_CLIENTS[self.dialect]}"))
        if self.dialect == "sqlite":
            begin_at_once(made.sync_engine)
        return made

    def django(self) -> Any:
        """Django's connection, of this thread."""
        configure_django(self.postgres)
        from django.db import connections

        url = self.engine.url
        engine = {"sqlite": "sqlite3", "mariadb": "mysql"}.get(self.dialect, self.dialect)
        given = {"ENGINE": f"django.db.backends.{engine}", "NAME": url.database, "USER": url.username or ""}
        given |= {"PASSWORD": url.password or "", "HOST": url.host or "", "PORT": url.port or ""}
        if self.dialect == "sqlite":
            given["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
        if self.dialect in ("mysql", "mariadb"):
            import pymysql

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

    def rows(self) -> list[Any]:
        """What is in the feed, by number."""
        with self.reader.connect() as connection:
            return list(connection.execute(text("SELECT * FROM outbox_feed ORDER BY number")).all())

    def messages(self) -> list[dict[str, Any]]:
        """The same as the relay reads it."""
        return [{**json.loads(row.message), "id": str(row.id), "key": row.ordering_key} for row in self.rows()]

    def clear(self) -> None:
        with self.engine.begin() as connection:
            for table in ("outbox_feed", "outbox_inbox"):
                connection.execute(text(f"DELETE FROM {table}"))


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
    """A database of this dialect, with the tables, for a module of tests."""
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
