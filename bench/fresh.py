"""An outbox of its own for a bench: on the database of the environment, or else on an embedded server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar
from uuid import uuid4

from outbox_tasks.database.connection import migrating
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.migrations import upgrade
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings


class OnAnOutbox(Protocol):
    """A bench: made of settings, with a store, and SQL that may name the schema."""

    store: Store

    def __init__(self, settings: Settings) -> None: ...

    def run(self, sql: str) -> object: ...


B = TypeVar("B", bound=OnAnOutbox)


@contextmanager
def outbox(kind: type[B]) -> Iterator[B]:
    """A bench on a fresh outbox."""
    with ExitStack() as stack:
        url = os.environ.get("OUTBOX_DATABASE_URL") or stack.enter_context(EmbeddedPostgres()).url
        schema = f"outbox_bench_{uuid4().hex[:8]}"
        settings = Settings(
            database_url=url, database_schema=schema, destinations={"orders": {"url": "redis+stream://localhost/0/x"}}
        )
        with migrating(settings) as connection:
            upgrade(connection, schema)
        bench = kind(settings)
        try:
            yield bench
        finally:
            bench.store.close()
            bench.run("DROP SCHEMA {schema} CASCADE")
