"""The tables, as SQLAlchemy sees them. What creates them is in `migrations/`; a test holds the two together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB

VERSION = 3
"""The version of the tables that this release reads and writes: the number of the newest migration."""

LOST_TABLE = {"42P01", "3F000", "42703", "42883"}
"""SQLSTATE of a missing table, schema, column or function."""

PENDING, DEAD = "pending", "dead"


@dataclass(frozen=True)
class Tables:
    """The outbox tables in one database schema."""

    messages: Table
    """Hot: only what is not yet sent."""
    archive: Table
    """Sent and discarded, partitioned by day."""
    destinations: Table
    """Those in trouble, or paused."""
    inbox: Table
    """Which messages consumers have taken, of the last days."""
    versions: Table
    """Which migrations have run."""


def _envelope() -> list[Column[object]]:
    """What hot and archived rows have in common; these columns move over when a message is sent."""
    return [
        Column("id", Uuid, nullable=False),
        Column("event_type", Text, nullable=False),
        Column("aggregate_type", Text),
        Column("aggregate_id", Text),
        Column("destination", Text, nullable=False),
        Column("key", Text),
        Column("payload", LargeBinary, nullable=False),
        Column("content_type", Text, nullable=False, server_default="application/json"),
        Column("headers", JSONB, nullable=False, server_default="{}"),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("last_error_code", Text),
        Column("last_error", Text),
        Column("created_at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
        Column("locked_by", Text),
    ]


def where(schema: str | None) -> str:
    """How an error names the place of the tables."""
    return f"schema {schema!r}" if schema else "any schema of the search_path"


@cache
def tables(schema: str | None = None) -> Tables:
    """The tables in `schema`; None: wherever the connection's search_path finds them."""
    metadata = MetaData(schema=schema)
    messages = Table(
        "outbox_messages",
        metadata,
        Column("seq", BigInteger, Identity(), nullable=False),
        *_envelope(),
        Column("status", Text, nullable=False, server_default=PENDING),
        Column("locked_until", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
        Column("lease", Uuid),
        Column("begun", Boolean, nullable=False, server_default="false"),
        Column("dead_at", DateTime(True)),
        Column("outages", Integer, nullable=False, server_default="0"),
        PrimaryKeyConstraint("id"),
    )
    Index(
        "outbox_messages_due",
        messages.c.destination,
        messages.c.locked_until,
        postgresql_where=messages.c.status == PENDING,
    )
    archive = Table(
        "outbox_archive",
        metadata,
        Column("seq", BigInteger, nullable=False),
        *_envelope(),
        Column("state", Text, nullable=False),
        Column("finished_at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
    )
    destinations = Table(
        "outbox_destinations",
        metadata,
        Column("name", Text, primary_key=True),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("failed_at", DateTime(True)),
        Column("error_code", Text),
        Column("error", Text),
        Column("opened_at", DateTime(True)),
        Column("pause_until", DateTime(True)),
        Column("probe", Uuid),
        Column("recovered_at", DateTime(True)),
        Column("paused_at", DateTime(True)),
        Column("paused_by", Text),
        Column("paused_why", Text),
    )
    inbox = Table(
        "outbox_inbox",
        metadata,
        Column("consumer", Text, primary_key=True),
        Column("message_id", Text, primary_key=True),
        Column("received_at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
    )
    Index("outbox_inbox_received_at", inbox.c.received_at)
    versions = Table(
        "outbox_versions",
        metadata,
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("applied_at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
    )
    return Tables(messages, archive, destinations, inbox, versions)
