"""The rows of one test: those that were written since it began."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self
from uuid import UUID, uuid4

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from outbox_tasks.database import sql
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.schema import Tables, qualified
from outbox_tasks.errors import OutboxError, SchemaMissing
from outbox_tasks.migrations import upgrade
from outbox_tasks.model import as_time
from outbox_tasks.relay.store import Store, processes
from outbox_tasks.settings import Settings
from outbox_tasks.testing.messages import SeenMessage
from outbox_tasks.writing.async_session import chosen_by
from outbox_tasks.writing.execution import Verb, read_in_django
from outbox_tasks.writing.transactions import is_django, unwrapped

SEEN = "testing/seen.sql"

RELAYS = """SELECT pid, client_addr::text FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = %s"""


class ProbeMisused(OutboxError):
    says = "{reason}"


class ProbeStore(Store):
    """A real store that sees and takes only what was written since it was opened."""

    application_name = "outbox_tasks.testing"

    since = 0
    """The last number that was given out before the test."""

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Connect, make the tables if they are missing, and begin."""
        unlimited = {"concurrency": None, "rate_limit": None}
        names = {name: each.model_copy(update=unlimited) for name, each in settings.destinations.items()}
        store = cls.connect(settings.model_copy(update={"destinations": names, "backoff_base": 0.0}))
        try:
            store.check_version()
        except SchemaMissing:
            with migrating(settings) as connection:
                upgrade(connection, settings.database_schema)
        # The next number, not the largest one in use: rows that others have not yet committed are not ours.
        sequence = qualified(settings.database_schema, "outbox_seq")
        [[store.since]] = store.query("SELECT nextval(%s::regclass)", sequence)
        return store

    def seen(self) -> list[SeenMessage]:
        """What is committed, in the order of insertion."""
        return [_seen(row._asdict()) for row in self.ask(SEEN, since=self.since)]

    def take(self, past: int) -> tuple[str | None, str, int] | None:
        """Lease the next message after the number `past` that is due. Returns its lease, destination and number."""
        token, lease = str(uuid4()), {"holder": processes.holder(), "hold": self.settings.queue_lease}
        rows = self.ask("testing/take.sql", token=token, since=self.since, past=past, **lease)
        return (token, rows[0].destination, rows[0].seq) if rows else None

    def check_alone(self) -> None:
        """Raises `ProbeMisused` while a relay is connected to this database."""
        for pid, address in self.query(RELAYS, Store.application_name):
            reason = f"""A relay is connected to the database of this test (server process {pid}, from
                {address or "this machine"}). It would send what the test publishes, and drain() would take what it is
                to send. Stop it, or give the tests a database of their own."""
            raise ProbeMisused(reason=reason)


def seen_within(session: Any, tables: Tables, since: int) -> list[SeenMessage]:
    """The rows that a session's or connection's own transaction sees. A transaction that only this begins is ended."""
    session, schema = unwrapped(session), tables.messages.schema
    if is_django(session):
        return [_seen(row) for row in read_in_django(session, Verb(SEEN, schema), {"since": since})]
    if not isinstance(session, Session | Connection):
        reason = f"""{type(session).__qualname__} can't be read without awaiting it. Pass a Session, a Connection or
            Django's connection; with an AsyncSession or AsyncConnection:
            `await session.run_sync(lambda s: outbox.within(s).assert_published(...))`."""
        raise ProbeMisused(reason=reason)
    begun = session.in_transaction()
    try:
        connection = chosen_by(session, tables.messages) if isinstance(session, Session) else session
        statement = sql.statement(SEEN, schema, connection.dialect.paramstyle)
        rows = connection.exec_driver_sql(statement.text.decode(), tuple(statement.values({"since": since})))
        return [_seen(row) for row in rows.mappings()]
    finally:
        if not begun:
            session.rollback()


def _seen(row: Mapping[Any, Any]) -> SeenMessage:
    headers = json.loads(row["headers"])
    times = {name: None if row[name] is None else as_time(row[name]) for name in ("created_at", "due")}
    return SeenMessage(**{**row, **times, "id": UUID(row["id"]), "payload": bytes(row["payload"]), "headers": headers})
