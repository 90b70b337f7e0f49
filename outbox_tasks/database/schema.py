"""The tables, as SQLAlchemy sees them. `sql/schema.sql` makes them, and a test compares both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.base import RESERVED_WORDS
from sqlalchemy.sql import Select, quoted_name

VERSION = 15
"""The version of the tables that this release makes, reads and writes."""

LOST_TABLE = {"42P01", "3F000", "42703", "42883"}
"""SQLSTATE of a missing table, schema, column or function."""

NO_RIGHTS = "42501"
"""SQLSTATE of a role that lacks a right."""

PENDING, DEAD = "pending", "dead"

RESERVED = {*RESERVED_WORDS, "collation", "concurrently", "lateral", "system_user", "tablesample"}
"""Names that PostgreSQL takes only in quotes. SQLAlchemy's list lacks some of them."""


@dataclass(frozen=True)
class Tables:
    """The outbox tables in one database schema."""

    messages: Table
    """The view of messages that are not yet sent, with their states."""
    archive: Table
    """The view of messages that were sent or discarded."""
    destinations: Table
    """Destinations in trouble, paused, or with a rate."""
    inbox: Table
    """The messages that consumers have taken in the last days."""
    audit: Table
    """Who did what, and why."""
    acts: Table
    """The acts of people that go on in the background."""
    tallies: Table
    """The outcomes of messages, counted by the minute."""
    heartbeats: Table
    """Which workers are alive, and when each periodic task ran last."""
    alerts: Table
    """The problems that people were told of."""
    versions: Table
    """Which version the tables have."""


def _envelope() -> list[Column[object]]:
    """The columns that both views have."""
    return [
        Column("seq", BigInteger),
        Column("id", Uuid),
        Column("event_type", Text),
        Column("aggregate_type", Text),
        Column("aggregate_id", Text),
        Column("destination", Text),
        Column("key", Text),
        Column("payload", LargeBinary),
        Column("content_type", Text),
        Column("headers", JSONB),
        Column("attempts", Integer),
        Column("last_error_code", Text),
        Column("last_error", Text),
        Column("created_at", DateTime(True)),
        Column("locked_by", Text),
        Column("history", JSONB),
    ]


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
    work = Table(
        "outbox_at_work",
        metadata,
        *_envelope(),
        Column("place", Text),
        Column("state", Text),
        Column("spared", Integer),
        Column("outages", Integer),
        Column("priority", SmallInteger),
        Column("latest", Boolean),
        Column("deliver_at", DateTime(True)),
        Column("lease", Uuid),
        Column("begun_at", DateTime(True)),
        Column("locked_until", DateTime(True)),
        Column("handed_at", DateTime(True)),
        Column("dead_at", DateTime(True)),
        Column("unheard", Integer),
        Column("kin", Text),
    )
    archive = Table(
        "outbox_archive",
        metadata,
        *_envelope(),
        Column("state", Text, nullable=False),
        Column("finished_at", DateTime(True), nullable=False),
    )
    destinations = Table(
        "outbox_destinations",
        metadata,
        Column("name", Text, primary_key=True),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("different", Integer, nullable=False, server_default="0"),
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
        Column("allowance", Float),
        Column("metered_at", DateTime(True)),
    )
    inbox = Table(
        "outbox_inbox",
        metadata,
        Column("consumer", Text, primary_key=True),
        Column("message_id", Text, primary_key=True),
        Column("received_at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
    )
    Index("outbox_inbox_received_at", inbox.c.received_at)
    audit = Table(
        "outbox_audit",
        metadata,
        Column("seq", BigInteger, Identity(), primary_key=True),
        Column("at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
        Column("who", Text, nullable=False),
        Column("why", Text),
        Column("action", Text, nullable=False),
        Column("target", Text),
        Column("count", BigInteger, nullable=False, server_default="1"),
        Column("facts", JSONB, nullable=False, server_default="{}"),
        Column("once", Uuid),
        Column("role", Text, server_default=func.current_user()),
        Column("closed_at", DateTime(True)),
    )
    Index("outbox_audit_at", audit.c.at)
    Index("outbox_audit_target", audit.c.target, audit.c.seq)
    Index("outbox_audit_once", audit.c.once, unique=True)
    acts = Table(
        "outbox_acts",
        metadata,
        Column("act", BigInteger, ForeignKey(audit.c.seq, ondelete="CASCADE"), primary_key=True, autoincrement=False),
        Column("wanted", JSONB, nullable=False),
        Column("as_of", DateTime(True), nullable=False),
        Column("rate", Float),
        Column("most", BigInteger),
        Column("total", BigInteger),
        Column("lease", Uuid),
        Column("locked_by", Text),
        Column("locked_until", DateTime(True), nullable=False, server_default="-infinity"),
    )
    tallies = Table(
        "outbox_tallies",
        metadata,
        Column("minute", DateTime(True), primary_key=True),
        Column("destination", Text, primary_key=True),
        Column("outcome", Text, primary_key=True),
        Column("count", BigInteger, nullable=False),
    )
    heartbeats = Table(
        "outbox_heartbeats",
        metadata,
        Column("name", Text, primary_key=True),
        Column("kind", Text, nullable=False),
        Column("seen_at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
        Column("facts", JSONB, nullable=False, server_default="{}"),
    )
    alerts = Table(
        "outbox_alerts",
        metadata,
        Column("code", Text, primary_key=True),
        Column("which", Text, primary_key=True),
        Column("severity", Text, nullable=False),
        Column("fact", Text, nullable=False),
        Column("cause", Text, nullable=False),
        Column("remedy", Text, nullable=False),
        Column("how_many", BigInteger),
        Column("since", DateTime(True), nullable=False),
        Column("seen_at", DateTime(True), nullable=False),
        Column("told_at", DateTime(True), nullable=False),
        Column("told_how_many", BigInteger),
        Column("over_at", DateTime(True)),
        Column("is_unposted", Boolean, nullable=False),
    )
    versions = Table(
        "outbox_versions",
        metadata,
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("applied_at", DateTime(True), nullable=False, server_default=func.clock_timestamp()),
    )
    return Tables(work, archive, destinations, inbox, audit, acts, tallies, heartbeats, alerts, versions)


def version(t: Tables) -> Select[Any]:
    """The version of the tables."""
    return select(func.max(t.versions.c.version))
