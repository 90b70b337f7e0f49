"""A schema with the tables , and what writes and reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine

from outbox_tasks.database import sql
from outbox_tasks.database.connection import Database
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, make_tables, own_schema

AT_WORK = ("ready", "waiting", "held", "leases", "runs", "dead")


class Box:
    """An outbox of a test: its tables, as a person who knows SQL sees them."""

    def __init__(self, url: str, schema: str) -> None:
        self.url, self.schema = url, schema
        self.connection = psycopg.connect(url, autocommit=True, options=f"-c search_path={schema}")

    def write(self, count: int = 1, /, on: psycopg.Connection[Any] | None = None, **fields: Any) -> None:
        """Publish messages, all with these fields: see write/publish.sql. `on`: in that connection's transaction."""
        row = {"event_type": "order.created", "destination": "orders", "text": "{}", **fields}
        rows = [{"id": str(uuid4()), "content_type": "application/json", **row} for _ in range(count)]
        self.run("write/publish.sql", on, row=json.dumps(rows))

    def lease(self, count: int = 1, *, seconds: float = 60.0) -> None:
        """Write messages, and lease each singly, as a claim would."""
        last = self.value("SELECT coalesce(max(seq), 0) FROM outbox_messages")
        self.write(count)
        self.connection.execute(
            "WITH taken AS (DELETE FROM outbox_ready WHERE seq > %s RETURNING seq) "
            "INSERT INTO outbox_leases (token, locked_until, destination, holder, seqs) "
            "SELECT gen_random_uuid(), now() + %s * interval '1 second', 'orders', 'a claim', ARRAY[seq] FROM taken",
            (last, seconds),
        )

    def run(self, verb: str, on: psycopg.Connection[Any] | None = None, /, **parameters: Any) -> Sequence[Any]:
        """The rows of a verb."""
        statement = sql.statement(verb, self.schema)
        cursor = psycopg.RawCursor(on or self.connection)
        cursor.execute(statement.text, statement.values(parameters))
        return cursor.fetchall() if cursor.description else ()

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(query, parameters or None).fetchall()

    def value(self, query: str, *parameters: Any) -> Any:
        [[value]] = self.rows(query, *parameters)
        return value

    def where(self, seq: int) -> list[str]:
        """The tables that a message is in, of those where it can be at work, and its states in the journal."""
        found = []
        for table in AT_WORK:
            is_there = "%s = ANY (seqs)" if table == "leases" else "seq = %s"
            found += [table] * self.value(f"SELECT count(*) FROM outbox_{table} WHERE {is_there}", seq)
        return found + [
            state for [state] in self.rows("SELECT state FROM outbox_journal WHERE seqs @> %s::bigint", seq)
        ]

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Somebody who has something open. It is rolled back, unless it was committed."""
        with psycopg.connect(self.url, options=f"-c search_path={self.schema} -c lock_timeout=5s") as connection:
            yield connection
            connection.rollback()

    def check_books(self) -> None:
        """Each message is in exactly one place."""
        places = {seq: self.where(seq) for [seq] in self.rows("SELECT seq FROM outbox_messages")}
        assert {seq: found for seq, found in places.items() if len(found) != 1} == {}


@contextmanager
def own_box(engine: Engine, postgres_url: str) -> Iterator[Box]:
    with own_schema(engine) as schema:
        make_tables(engine, schema)
        made = Box(postgres_url, schema)
        yield made
        made.connection.close()


@pytest.fixture
def box(engine: Engine, postgres_url: str) -> Iterator[Box]:
    with own_box(engine, postgres_url) as made:
        yield made


@pytest.fixture
def next_settings(box: Box, settings: MakeSettings) -> Settings:
    return settings(database_schema=box.schema)


@pytest.fixture
def tables(next_settings: Settings) -> Iterator[Database]:
    made = Database.connect(next_settings)
    yield made
    made.close()
