"""The rows of one test: those written since it began. It neither reads nor claims nor changes others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID

from sqlalchemy import (
    Connection,
    Engine,
    Float,
    Table,
    Text,
    and_,
    case,
    cast,
    column,
    extract,
    func,
    not_,
    null,
    select,
    table,
    union_all,
)
from sqlalchemy.dialects.postgresql import REGCLASS
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.orm import Session
from sqlalchemy.sql import ColumnElement, Executable

from outbox_tasks.database.connection import migrating
from outbox_tasks.database.schema import Tables, qualified
from outbox_tasks.errors import SchemaMissing
from outbox_tasks.internals import block_of_test
from outbox_tasks.migrations import upgrade
from outbox_tasks.model import EVENT_ID, as_time
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.settings.django_project import alias_of
from outbox_tasks.testing.errors import NotReadable, RelayAtWork
from outbox_tasks.testing.messages import SeenMessage
from outbox_tasks.writing.async_session import chosen_by, engine_of
from outbox_tasks.writing.transactions import is_django, unwrapped


def _without_limits(settings: Settings) -> Settings:
    """A drain sends one message after the other, as fast as it can."""
    limits = {"concurrency": None, "rate_limit": None}
    names = {name: each.model_copy(update=limits) for name, each in settings.destinations.items()}
    return settings.model_copy(update={"destinations": names}).with_singles("all")


class ProbeStore(Store):
    """A real store that sees, claims and changes only what was written since it was opened."""

    application_name = "outbox_tasks.testing"

    since = 0
    """The last number that was given out before the test."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._used_keys: dict[tuple[str, str], dict[str, Any]] = {}
        """The rows of keys under which others left something, as they were."""

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Connect, make the tables if they are missing, and begin."""
        store = cls.connect(_without_limits(settings))
        try:
            store.check_version()
        except SchemaMissing:
            with migrating(settings) as connection:
                upgrade(connection, settings.database_schema)
        # The next number, not the largest one in use: rows that others have not yet committed are not ours.
        sequence = qualified(settings.database_schema, "outbox_seq")
        [[store.since]] = store.rows(select(func.nextval(cast(sequence, REGCLASS))), {})
        return store

    def seen(self) -> list[SeenMessage]:
        """What is committed, in the order of insertion."""
        return [_seen(*row) for row in self.rows(seen(self.tables, self.since), {})]

    def check_alone(self) -> None:
        """Raises `RelayAtWork`."""
        activity = table(
            "pg_stat_activity", column("pid"), column("client_addr"), column("datname"), column("application_name")
        )
        relays = self.rows(
            select(activity.c.pid, cast(activity.c.client_addr, Text))
            .where(activity.c.datname == func.current_database(), activity.c.application_name == Store.application_name)
            .limit(1),
            {},
        )
        for pid, address in relays:
            raise RelayAtWork(pid=pid, address=address or "this machine")

    @contextmanager
    def others_locked(self) -> Iterator[None]:
        """Inside, a claim takes only our rows: it passes over those that are locked. It reads ours from the front, as a
        test undoes claims, locks rows, and lets time pass."""
        self.start_anew()
        for name in self.settings.destinations:
            self._places.of(name).start = self.since + 1
        for row in self.ask("test/own_keys.sql", since=self.since):
            self._used_keys.setdefault((row.destination, row.key), row._asdict())
        with self.transaction() as run:
            run("test/others.sql", since=self.since)
            yield

    def return_keys(self) -> None:
        """Give back the keys of others under which a test has published too."""
        if self._used_keys:
            self.ask("test/return_keys.sql", row=json.dumps(list(self._used_keys.values())))
            self._used_keys.clear()

    def next_due(self, but: Collection[str]) -> float | None:
        """Seconds until the first waiting or leased row can be claimed; `but` are ids to leave out."""
        m = self.tables.messages
        now = func.clock_timestamp()
        wait = func.min(cast(extract("epoch", m.c.locked_until - now), Float))
        is_behind = and_(m.c.place == "held", m.c.locked_until <= now)
        [[seconds]] = self.rows(select(wait).where(*self._ours(but), not_(is_behind)), {})
        return None if seconds is None else float(seconds)

    def forward(self, seconds: float, but: Collection[str] = ()) -> None:
        """Let time pass for all waiting or leased rows; `but` are ids to leave out."""
        self.ask("test/forward.sql", since=self.since, only=None, but=[*but], seconds=seconds)

    def forward_one(self, id: str, seconds: float) -> None:
        """The same for one message."""
        self.ask("test/forward.sql", since=self.since, only=[id], but=[], seconds=seconds)

    def expire_leases(self) -> int:
        """End every lease; returns how many messages they had."""
        return int(self.ask("test/expire.sql", since=self.since)[0][0])

    def pending(self) -> int:
        """How many are still to be sent, now or later."""
        [[count]] = self.rows(select(func.count()).select_from(self.tables.messages).where(*self._ours(())), {})
        return int(count)

    def _ours(self, but: Collection[str]) -> list[ColumnElement[bool]]:
        m = self.tables.messages
        return [m.c.seq > self.since, m.c.place != "dead", m.c.id.not_in([UUID(id) for id in but])]


def rolled_back_by_django(settings: Settings) -> Any:
    """Django's connection to this outbox while a `TestCase` has a transaction open there, which it never commits;
    else None."""
    if (alias := alias_of(settings.database_url)) is None:
        return None
    from django.db import connections

    return connections[alias] if block_of_test(connections[alias]) is not None else None


def seen_within(session: Any, t: Tables, since: int) -> list[SeenMessage]:
    """The rows that a session's or connection's own transaction sees. Raises `NotReadable`."""
    session, statement = unwrapped(session), seen(t, since)
    if is_django(session):
        text = statement.compile(dialect=PGDialect_psycopg(), compile_kwargs={"literal_binds": True})  # type: ignore[no-untyped-call]
        with session.cursor() as cursor:
            cursor.execute(str(text))
            return [_seen(*row) for row in cursor.fetchall()]
    if isinstance(session, Session):
        # Don't begin a transaction: the test may want to do so.
        session = (chosen_by if session.in_transaction() else engine_of)(session, t.messages)
    if isinstance(session, Engine):
        with session.connect() as connection:
            return _read(connection, statement)
    if isinstance(session, Connection):
        begun = session.in_transaction()
        try:
            return _read(session, statement)
        finally:
            if not begun:
                session.rollback()
    raise NotReadable(kind=f"{type(session).__module__}.{type(session).__qualname__}")


def _read(connection: Connection, statement: Executable) -> list[SeenMessage]:
    return [_seen(*row) for row in connection.execute(statement).all()]


def seen(t: Tables, since: int) -> Any:
    """Rows written after number `since`. Only types that every driver and framework reads alike."""
    m, a = t.messages, t.archive
    due = case((m.c.place != "dead", _epoch(m.c.locked_until)))
    both = union_all(_columns(m, since, m.c.state, due), _columns(a, since, a.c.state, cast(null(), Float))).subquery()
    return select(*(c for c in both.c if c.name != "seq")).order_by(both.c.seq)


def _columns(t: Table, since: int, state: ColumnElement[Any], due: ColumnElement[Any]) -> Any:
    return select(
        t.c.seq, cast(t.c.id, Text).label("id"), t.c.event_type, t.c.destination, t.c.key, t.c.payload,
        t.c.content_type, cast(t.c.headers, Text).label("headers"), t.c.aggregate_type, t.c.aggregate_id,
        _epoch(t.c.created_at).label("created_at"), state.label("state"), t.c.attempts, due.label("due"),
        t.c.last_error_code, t.c.last_error,
    ).where(t.c.seq > since)  # fmt: skip


def _epoch(time: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(extract("epoch", time), Float)


def _seen(id: str, *row: Any) -> SeenMessage:
    event_type, destination, key, payload, content_type, headers, kind, of, created_at, state, attempts, due, *why = row
    own = {name: value for name, value in json.loads(headers or "{}").items() if name != EVENT_ID}
    return SeenMessage(
        UUID(id), event_type, destination, key, bytes(payload), content_type, own, kind, of,
        as_time(created_at), state, attempts, None if due is None else as_time(due), *why,
    )  # fmt: skip
