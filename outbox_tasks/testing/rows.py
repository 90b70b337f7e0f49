"""The rows of one test: those written since it began. It neither reads nor claims nor changes others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID

from sqlalchemy import (
    Connection,
    Engine,
    Float,
    Table,
    Text,
    case,
    cast,
    column,
    extract,
    func,
    literal,
    null,
    select,
    table,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import REGCLASS
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.orm import Session
from sqlalchemy.sql import ColumnElement, Executable

from outbox_tasks.database.connection import migrating
from outbox_tasks.database.pieces import SECOND
from outbox_tasks.database.schema import PENDING, Tables
from outbox_tasks.database.states import state_of
from outbox_tasks.errors import SchemaMissing, SchemaTooOld
from outbox_tasks.migrations import upgrade
from outbox_tasks.model import EVENT_ID, as_time
from outbox_tasks.relay.store import Store
from outbox_tasks.relay.store.claims import Claimed
from outbox_tasks.relay.store.deliveries import settled
from outbox_tasks.relay.store.traffic import Traffic
from outbox_tasks.settings import Settings
from outbox_tasks.testing.errors import NotReadable, RelayAtWork
from outbox_tasks.testing.messages import SeenMessage
from outbox_tasks.writing.transactions import is_django, unwrapped


class _NoSlots(Traffic):
    """Any number of sends at once. A crash in a drain ends no process, so nothing would free its slots."""

    def rooms(self, *, publishing: bool = False) -> Mapping[str, int | None]:
        return dict.fromkeys(self.settings.destinations)

    def count_again(self, *, publishing: bool = False) -> None:
        pass


def _without_limits(settings: Settings) -> Settings:
    """A drain sends one bundle after the other, as fast as it can."""
    limits = {"concurrency": None, "rate_limit": None}
    names = {name: each.model_copy(update=limits) for name, each in settings.destinations.items()}
    return settings.model_copy(update={"destinations": names})


class ProbeStore(Store):
    """A real store that sees, claims and changes only what was written since it was opened."""

    application_name = "outbox_tasks.testing"

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.traffic = _NoSlots(engine, settings)
        # The test looks at sent messages, even if the application deletes them.
        self._settle_done = settled(self.tables, archive=True)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Connect, make the tables if they are missing or old, and begin."""
        store = cls.connect(_without_limits(settings))
        try:
            store.check_version()
        except (SchemaMissing, SchemaTooOld):
            with migrating(settings) as connection:
                upgrade(connection, settings.database_schema)
        # The sequence's next number, not the largest one in use: rows that others have not yet committed are not ours.
        name = store.engine.dialect.identifier_preparer.format_table(store.tables.messages)
        sequence = cast(func.pg_get_serial_sequence(name, "seq"), REGCLASS)
        [[store.since]] = store.rows(select(func.nextval(sequence)), {})
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

    def claim(self, shares: Mapping[str, int], lease: str, of_keys: Mapping[str, int] | None = None) -> list[Claimed]:
        """Only our rows. Those that their writer leased too: no worker would take its tasks."""
        m = self.tables.messages
        writers = [*self._ours(()), m.c.lease.is_not(None), m.c.locked_by.is_(None)]
        self._set_due(writers, func.clock_timestamp(), lease=null())
        with self._others_locked():
            return super().claim(shares, lease, of_keys)

    def bury_unroutable(self, pause: float = 0.0) -> list[Claimed]:
        """Only our rows, and at each call."""
        with self._others_locked():
            return super().bury_unroutable()

    def next_due(self, but: Collection[str]) -> float | None:
        """Seconds until the first waiting or leased row can be claimed; `but` are ids to leave out."""
        m = self.tables.messages
        wait = func.min(cast(extract("epoch", m.c.locked_until - func.clock_timestamp()), Float))
        [[seconds]] = self.rows(select(wait).where(*self._ours(but), func.isfinite(m.c.locked_until)), {})
        return None if seconds is None else float(seconds)

    def forward(self, seconds: float, but: Collection[str] = ()) -> None:
        """Let time pass for all waiting or leased rows; `but` are ids to leave out."""
        self._set_due(self._ours(but), self._earlier(seconds))

    def forward_one(self, id: str, seconds: float) -> None:
        """The same for one message."""
        self._set_due([*self._ours(()), self.tables.messages.c.id == UUID(id)], self._earlier(seconds))

    def expire_leases(self) -> int:
        """End every lease; returns how many there were."""
        m = self.tables.messages
        return self._set_due([*self._ours(()), m.c.lease.is_not(None)], func.clock_timestamp())

    def pending(self) -> int:
        """How many are still to be sent, now or later."""
        [[count]] = self.rows(select(func.count()).select_from(self.tables.messages).where(*self._ours(())), {})
        return int(count)

    def _set_due(self, which: Sequence[ColumnElement[bool]], when: ColumnElement[Any], **values: Any) -> int:
        m = self.tables.messages
        # Pass over locked rows, as a claim does.
        free = select(m.c.id).where(*which).with_for_update(skip_locked=True)
        values["locked_until"] = when
        return len(self.rows(update(m).where(m.c.id.in_(free)).values(values).returning(m.c.id), {}))

    def _earlier(self, seconds: float) -> ColumnElement[Any]:
        return self.tables.messages.c.locked_until - literal(seconds, Float) * SECOND

    def _ours(self, but: Collection[str]) -> list[ColumnElement[bool]]:
        m = self.tables.messages
        return [m.c.seq > self.since, m.c.status == PENDING, m.c.id.not_in([UUID(id) for id in but])]

    @contextmanager
    def _others_locked(self) -> Iterator[None]:
        """Lock the rows that are not ours: a claim passes over locked rows."""
        m = self.tables.messages
        others = select(m.c.id).where(m.c.seq <= self.since, m.c.status == PENDING)
        if not self.rows(others.limit(1), {}):
            yield
            return
        with migrating(self.settings) as connection:
            connection.execute(others.with_for_update(skip_locked=True)).all()
            yield


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
        which = {"clause": statement}
        session = session.connection(bind_arguments=which) if session.in_transaction() else session.get_bind(**which)
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
    # By the clock, not by now(): in its own transaction a message was written after now().
    state = state_of(m, func.clock_timestamp())
    due = case((m.c.status == PENDING, _epoch(m.c.locked_until)))
    both = union_all(_columns(m, since, state, due), _columns(a, since, a.c.state, cast(null(), Float))).subquery()
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
    own = {name: value for name, value in json.loads(headers).items() if name != EVENT_ID}
    return SeenMessage(
        UUID(id), event_type, destination, key, bytes(payload), content_type, own, kind, of,
        as_time(created_at), state, attempts, None if due is None else as_time(due), *why,
    )  # fmt: skip
