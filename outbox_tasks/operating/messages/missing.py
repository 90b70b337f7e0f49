"""What may be the case with a message that a search did not find, by what can be checked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import where
from outbox_tasks.operating.audit import deed
from outbox_tasks.text import moment, one_line, redacted, shell_line, some, span


def reasons(database: Database, text: str, *, event_type: bool) -> Iterator[str]:
    """Sentences, those first that say the most about this text. `event_type`: messages have it as theirs."""
    id = uuid_of(text)
    if text in database.settings.destinations:
        yield f"It is a destination: {shell_line('list', '--destination', text)}"
    if event_type:
        yield f"It is an event type: {shell_line('list', '--type', text)}"
    for act in database.ask("audit/about.sql", target=str(id or text), named=[]):
        yield f"At {moment(act.at)} {one_line(act.who)} did this to it: {deed(act._asdict())}."
    yield _uncommitted(database)
    yield from _gone(database, id)
    yield from _elsewhere(database)
    if id is None:
        yield (
            "It is only a part of a name: keys, aggregate ids and Celery task ids are looked for in full, and ids from "
            "their first eight digits on."
        )


def uuid_of(text: str) -> UUID | None:
    """The UUID that a text is; None: it is none."""
    try:
        return UUID(text)
    except ValueError:
        return None


def _uncommitted(database: Database) -> str:
    asked = {"place": database.settings.database_schema, "destination": None, "key": None, "seq": None}
    sessions = [
        f"session {row.pid} ({one_line(row.application or 'a client')}, {'?' if row.age is None else span(row.age)})"
        for row in database.ask("doctor/open_writers.sql", **asked)
        if row.age is None or row.age > 1  # others come and go all the time
    ]
    if not sessions:
        return "It was rolled back, or never published: no transaction that has written here is open now."
    return f"It is not committed yet. Transactions that wrote here and are open: {some(sessions)}."


def _gone(database: Database, id: UUID | None) -> Iterator[str]:
    since, retention = database.ask("find/elsewhere.sql")[0].since, database.settings.archive_retention
    if since is None:
        return
    made = None if id is None or id.version != 7 else datetime.fromtimestamp((id.int >> 80) / 1000, UTC)
    says = "" if made is None else f" By its id it was made at {moment(made)}."
    kept = f"what was sent or discarded stays for {span(retention)}" if retention else "no archive is deleted here"
    yield f"It has left the archive: {kept}, and the oldest messages here are of {moment(since)}.{says}"


def _elsewhere(database: Database) -> Iterator[str]:
    settings = database.settings
    others = database.ask("find/elsewhere.sql")[0].schemas
    also = f" This database has other outboxes, in the schemas {some(others)}." if others else ""
    here = f"{redacted(settings.database_url or '')}, {where(settings.database_schema)}"
    yield f"It was written to another database or schema than this one ({here}).{also}"
