"""Databases with a feed, written by their plain drivers as any application might, and a race of writers in them."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from outbox_tasks.feeds.source import Source, open_source
from tests.integration.own_database import own_database
from tests.schemas import new_name

DIALECTS = ("mariadb", "mysql", "postgresql", "sqlite")


class Place:
    """A database with a feed."""

    def __init__(self, dialect: str, url: str) -> None:
        self.dialect = dialect
        self.url = url
        self._opened: list[Any] = []

    def source(self, timeout: float = 5.0) -> Source:
        source = open_source("eu", self.url, timeout=timeout)
        self._opened.append(source)
        return source

    def connect(self, *, wait: float = 5) -> Any:
        """A connection of an application, which begins transactions by itself."""
        self._opened.append(connection := self._connect(wait))
        return connection

    def _connect(self, wait: float) -> Any:
        url = make_url(self.url)
        if self.dialect == "sqlite":
            made = sqlite3.connect(
                str(url.database), timeout=wait, isolation_level="IMMEDIATE", check_same_thread=False
            )
            made.execute("PRAGMA synchronous = NORMAL")
            return made
        if self.dialect == "postgresql":
            return psycopg.connect(self.url.replace("+psycopg", ""))
        login = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
        made = pymysql.connect(**login, charset="utf8mb4")  # type: ignore[arg-type]
        run(made, f"SET SESSION innodb_lock_wait_timeout = {wait:.0f}")
        return made

    def write(self, connection: Any, key: str | None = None, message: str = "{}", id: str | None = None) -> str:
        """Insert a row; returns its id."""
        id = id or str(uuid4())
        sql = "INSERT INTO outbox_feed (id, ordering_key, message) VALUES (%s, %s, %s)"
        run(connection, sql.replace("%s", "?") if self.dialect == "sqlite" else sql, (id, key, message))
        return id

    def give_number_again(self, number: int) -> None:
        """As if the database were restored: the next row has this number."""
        with_number = {
            "sqlite": f"UPDATE sqlite_sequence SET seq = {number - 1} WHERE name = 'outbox_feed'",
            "postgresql": f"SELECT setval('outbox_feed_number', {number}, false)",
        }
        connection = self.connect()
        run(connection, with_number.get(self.dialect, f"ALTER TABLE outbox_feed AUTO_INCREMENT = {number}"))
        connection.commit()
        connection.close()

    def clear(self) -> None:
        """Empty the feed, and end what a test has left."""
        while self._opened:
            with suppress(pymysql.Error):  # it is closed already, or was killed
                self._opened.pop().close()
        connection = self.connect()
        run(connection, "DELETE FROM outbox_feed")
        connection.commit()
        connection.close()


def run(connection: Any, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    cursor = connection.cursor()
    cursor.execute(sql, values)
    found = list(cursor.fetchall()) if cursor.description else []
    cursor.close()
    return found


@contextmanager
def own_place(dialect: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A database of this dialect with a feed. Skips if there is no such server."""
    if dialect == "sqlite":
        yield Place(dialect, f"sqlite:///{folder}/app.db")
    elif dialect == "postgresql":
        with own_database(request.getfixturevalue("engine")) as own:
            yield Place(dialect, own.engine.url.render_as_string(hide_password=False))
    else:
        server, name = Place(dialect, request.getfixturevalue(dialect)), new_name()
        with closing(server.connect()) as admin:
            run(admin, f"CREATE DATABASE {name}")
            url = make_url(server.url).set(database=name)
            yield Place(dialect, url.render_as_string(hide_password=False))
            run(admin, f"DROP DATABASE {name}")


class Written(NamedTuple):
    key: str | None
    began: float
    returned: float


class Race:
    """Writers with overlapping transactions of some keys, a tenth of them rolled back, and a bridge beside them."""

    def __init__(self, place: Place, rows: int, *, writers: int = 8, keys: int = 5) -> None:
        self.place = place
        self.committed: dict[str, Written] = {}
        self.copied: list[tuple[int, str, str | None]] = []
        self.rolled_back: set[str] = set()
        self.waits: list[float] = []
        self._each, self._writers, self._keys = rows // writers, writers, keys
        self._failed: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._write, args=(seed,)) for seed in range(self._writers)]
        for thread in threads:
            thread.start()
        source = self.place.source(timeout=60)
        while not self._copy(source) or any(thread.is_alive() for thread in threads):
            pass
        for thread in threads:
            thread.join()
        while not self._copy(source):
            pass
        source.close()
        if self._failed:
            raise self._failed[0]

    def _copy(self, source: Source) -> bool:
        """Copy what may be copied now; returns whether there was nothing."""
        rows = source.look(100)
        self.copied += [(row.number, row.id, row.key) for row in rows]
        source.delete([(row.number, row.id) for row in rows])
        return not rows

    def _write(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            connection = self.place.connect(wait=60)
            done = 0
            while done < self._each:
                made: dict[str, Written] = {}
                for _ in range(chance.randint(1, 4)):
                    key = chance.choice([*(f"key {n}" for n in range(self._keys)), None])
                    began = time.monotonic()
                    id = self._write_row(connection, key)
                    made[id] = Written(key, began, time.monotonic())
                    self.waits.append(made[id].returned - began)
                    if chance.random() < 0.2 and self.place.dialect != "sqlite":
                        time.sleep(chance.random() / 200)
                if chance.random() < 0.1:
                    connection.rollback()
                    self.rolled_back |= set(made)
                else:
                    connection.commit()
                    self.committed |= made
                done += len(made)
            connection.close()
        except BaseException as error:
            self._failed.append(error)

    def _write_row(self, connection: Any, key: str | None) -> str:
        return self.place.write(connection, key)

    @property
    def found(self) -> dict[str, int]:
        """What is wrong: rows lost, invented and copied twice; rows copied after one of their key whose insert began
        when theirs had returned; and by number, which says more: of two inserts at the same moment either may be first,
        whatever their numbers are."""
        ids = [id for _, id, _ in self.copied]
        numbers = twisted = 0
        last: dict[str, int] = defaultdict(int)
        latest: dict[str, float] = defaultdict(float)
        for number, id, key in self.copied:
            if key is None or id not in self.committed:
                continue
            numbers += number < last[key]
            last[key] = max(last[key], number)
            written = self.committed[id]
            twisted += written.returned < latest[key]
            latest[key] = max(latest[key], written.began)
        return {
            "lost": len(set(self.committed) - set(ids)),
            "ghosts": len(set(ids) - set(self.committed)),
            "twice": len(ids) - len(set(ids)),
            "inversions": twisted,
            "inversions by number": numbers,
        }


@pytest.fixture(scope="module", params=DIALECTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with own_place(request.param, tmp_path_factory.mktemp("feed"), request) as place:
        place.source().init()
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


def ids(source: Source, most: int = 1000) -> list[str]:
    return [row.id for row in source.look(most)]
