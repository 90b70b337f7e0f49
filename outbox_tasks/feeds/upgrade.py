"""Makes the tables that an application's own database has: the feed, and the inbox."""

from __future__ import annotations

from sqlalchemy import Connection

from outbox_tasks.database import sql
from outbox_tasks.feeds.tables import statements
from outbox_tasks.migrations.connections import DjangoConnection, runner


def upgrade(connection: Connection | DjangoConnection, schema: str | None = None) -> None:
    """See `migrations.upgrade_feed`."""
    dialect = connection.dialect.name if isinstance(connection, Connection) else connection.vendor
    for statement in statements(dialect, schema):
        runner(connection, sql.FEEDS).script(statement)
