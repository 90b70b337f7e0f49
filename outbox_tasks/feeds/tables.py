"""The tables of a feed in an application's own database: the feed, and the inbox."""

from __future__ import annotations

from sqlalchemy import Connection

from outbox_tasks.database import sql
from outbox_tasks.migrations.connections import DjangoConnection, runner

FILES = ("inbox.sql", "feed.sql")
"""What an application in Python needs."""

LANGUAGES = {"mysql": ("publish_procedure.sql",), "postgresql": ("publish_function.sql",), "sqlite": ()}
"""What applications in other languages call, where the dialect can have it."""


def statements(dialect: str, schema: str | None = None, *, languages: bool = False) -> list[str]:
    """The statements that make what is missing. `schema`: where; None: where the connection makes tables. `languages`:
    also what other languages call. Raises `UnsupportedDatabase`.

    In the files an empty line stands between two statements, and nowhere else."""
    sql.check_dialect(dialect, sql.FEEDS)
    folder = sql.FEEDS[dialect]
    names = FILES + (LANGUAGES[folder] if languages else ())
    parts = (part for name in names for part in sql.source(f"feeds/{folder}/{name}").split(";\n\n"))
    return [sql.rendered(part, schema, quote=sql.quote_of(dialect))[0] for part in parts]


def upgrade(connection: Connection | DjangoConnection, schema: str | None = None) -> None:
    """See `migrations.upgrade_feed`."""
    dialect = connection.dialect.name if isinstance(connection, Connection) else connection.vendor
    for statement in statements(dialect, schema):
        runner(connection, sql.FEEDS).script(statement)
