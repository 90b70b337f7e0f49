"""The version of the tables, their place in a database, and the few that Python statements name.

`sql/schema.sql` makes all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from sqlalchemy import BigInteger, Column, DateTime, Integer, LargeBinary, MetaData, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.base import RESERVED_WORDS
from sqlalchemy.sql import quoted_name

VERSION = 15
"""The version of the tables that this release makes, reads and writes."""

LOST_TABLE = {"42P01", "3F000", "42703", "42883"}
"""SQLSTATE of a missing table, schema, column or function."""

NO_RIGHTS = "42501"
"""SQLSTATE of a role that lacks a right."""

RESERVED = {*RESERVED_WORDS, "collation", "concurrently", "lateral", "system_user", "tablesample"}
"""Names that PostgreSQL takes only in quotes. SQLAlchemy's list lacks some of them."""


@dataclass(frozen=True)
class Tables:
    """What a session with several engines can name in its `binds`, and what the test kit reads."""

    messages: Table
    """The view of messages that are not yet sent, with their states."""
    archive: Table
    """The view of messages that were sent or discarded."""
    inbox: Table
    """The messages that consumers have taken in the last days."""


def where(schema: str | None) -> str:
    """The place of the tables, for an error."""
    return f"schema {schema!r}" if schema else "any schema of the search_path"


def quoted(name: str) -> str:
    """A name as SQL takes it: in quotes if it needs them."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in RESERVED
    return name if plain else '"' + name.replace('"', '""') + '"'


def qualified(schema: str | None, name: str) -> str:
    """The name of a table, index or function in `schema`, as SQL takes it."""
    return f"{quoted(schema)}.{name}" if schema else name


@cache
def tables(schema: str | None = None) -> Tables:
    """The tables in `schema`; None: wherever the connection's search_path finds them."""
    metadata = MetaData(schema=schema and quoted_name(schema, quoted(schema) != schema))

    def view(name: str, *own: Column[object]) -> Table:
        texts = ("event_type", "destination", "key", "content_type", "aggregate_type", "aggregate_id", "state")
        return Table(
            name,
            metadata,
            Column("seq", BigInteger),
            Column("id", Uuid),
            *(Column(text, Text) for text in (*texts, "last_error_code", "last_error")),
            Column("payload", LargeBinary),
            Column("headers", JSONB),
            Column("attempts", Integer),
            Column("created_at", DateTime(True)),
            *own,
        )

    return Tables(
        view("outbox_at_work", Column("place", Text), Column("locked_until", DateTime(True))),
        view("outbox_archive"),
        Table(
            "outbox_inbox",
            metadata,
            Column("consumer", Text),
            Column("message_id", Text),
            Column("received_at", DateTime(True)),
        ),
    )
