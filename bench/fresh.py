"""An outbox of its own for a bench: on the database of the environment, or else on an embedded server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

from sqlalchemy import text

from outbox_tasks.database.connection import migrating
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings

ORDERS = {"destinations": {"orders": {"url": "redis+stream://localhost/0/x"}}}


@contextmanager
def outbox(
    server: Mapping[str, str] | None = None, *, database_url: str | None = None, **values: Any
) -> Iterator[Settings]:
    """The settings of a fresh outbox with these values. `server`: settings of the embedded server."""
    with ExitStack() as stack:
        url = database_url or os.environ.get("OUTBOX_DATABASE_URL")
        url = url or stack.enter_context(EmbeddedPostgres(settings=server or {})).url
        schema = f"outbox_bench_{uuid4().hex[:8]}"
        settings = Settings(**{**ORDERS, "database_url": url, "database_schema": schema, **values})
        with migrating(settings) as connection:
            upgrade(connection, schema)
        try:
            yield settings
        finally:
            execute(settings, "DROP SCHEMA {schema} CASCADE")


def execute(settings: Settings, sql: str, **values: object) -> list[Any]:
    """Execute SQL without the relay's limits; `{schema}` stands for the outbox's."""
    with migrating(settings) as connection:
        result = connection.execute(text(sql.replace("{schema}", settings.database_schema or "public")), values)
        return list(result.all()) if result.returns_rows else []
