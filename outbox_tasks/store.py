"""The only executor of SQL: one method a statement of `statements`, each its own short transaction.

A method that changes rows under a lease returns what it changed; what is missing from the answer is not ours any
more, which is a result to count and not an error.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self
from uuid import UUID

from sqlalchemy import URL, Connection, Engine, Executable, NullPool, create_engine, make_url
from sqlalchemy.exc import ArgumentError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outbox_tasks import breaker, statements
from outbox_tasks.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)
from outbox_tasks.model import Bundle, LeasedMessage, Step, Ticket, Verdict
from outbox_tasks.schema import LOST_TABLE, VERSION, tables, where
from outbox_tasks.settings import HIDDEN, Settings, redacted
from outbox_tasks.sql import check_dialect

PLANNING = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off"
"""Every statement reaches its rows by index. A plan made while the table was empty must not say otherwise later."""

NO_RIGHTS = "42501"
"""SQLSTATE of a role that may not do what it tried."""


class Claimed(NamedTuple):
    """A row that a claim has just leased, or found to have no attempts left."""

    seq: int
    id: str
    destination: str
    event_type: str
    attempts: int
    status: str
    alone: bool


def engine_url(url: str) -> URL:
    """The SQLAlchemy URL of a PostgreSQL URL as people write it, with psycopg 3 as the driver."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:
        rule = "it must be a URL such as postgresql://user@host:5432/database"
        raise ConfigurationError(setting="database_url", value=HIDDEN, rule=rule) from error
    backend = {"postgres": "postgresql"}.get(backend, backend)
    check_dialect(backend)
    if parsed.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        rule = "the relay speaks to PostgreSQL through psycopg 3: postgresql+psycopg://…, or just postgresql://…"
        raise ConfigurationError(setting="database_url", value=redacted(url), rule=rule)
    return parsed.set(drivername="postgresql+psycopg")


@contextmanager
def migrating(settings: Settings) -> Iterator[Connection]:
    """A connection in a transaction of its own, without the limits of the pipe, for `migrations.upgrade`."""
    engine = create_engine(
        engine_url(_database_url(settings)),
        connect_args={"connect_timeout": 5, "client_encoding": "utf8"},
        poolclass=NullPool,
    )
    try:
        with engine.begin() as connection:
            yield connection
    except (OperationalError, InterfaceError, InternalError) as error:
        raise _unavailable(settings, error.orig) from error


def _database_url(settings: Settings) -> str:
    if settings.database_url is None:
        rule = "it is needed here; set OUTBOX_DATABASE_URL, for example postgresql://user@host/database"
        raise ConfigurationError(setting="database_url", value=None, rule=rule)
    return settings.database_url


def holder() -> str:
    """Who we are, on the rows that we hold."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Store:
    """The outbox tables of one database."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        check_dialect(engine.dialect.name)
        self.engine = engine
        self.settings = settings
        self.tables = t = tables(settings.database_schema)
        self._claim = statements.claim(t)
        self._bury_unroutable = statements.bury_unroutable(t)
        self._begin = statements.begin(t)
        self._settle_done = statements.settle_done(t, archive=settings.archive == "move")
        self._settle_failed = statements.settle_failed(t)
        self._release = statements.release(t)
        self._admit = breaker.admit(t)
        self._give_back = breaker.give_back(t)
        self._tripped = breaker.tripped(t)
        self._forget = statements.forget(t)

    @classmethod
    def connect(cls, settings: Settings) -> Self:
        """A store with an engine of its own for `settings.database_url`. Connects when first used."""
        timeout = int(settings.statement_timeout * 1000)
        engine = create_engine(
            engine_url(_database_url(settings)),
            # Every statement is its own transaction: no BEGIN, no COMMIT, nothing left open by a crash.
            isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,
            pool_size=2,
            max_overflow=8,
            pool_timeout=5,
            connect_args={
                "connect_timeout": 5,
                "client_encoding": "utf8",
                "application_name": "outbox_tasks",
                # A dead peer is noticed by the system when the statement could not have been running any more.
                "tcp_user_timeout": 10_000,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 2,
                **({"options": f"{PLANNING} -c statement_timeout={timeout}"} if timeout else {}),
            },
        )
        return cls(engine, settings)

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    def check_version(self) -> None:
        """Raises `SchemaMissing`, `SchemaTooOld` or `SchemaTooNew` unless the tables are of this release."""
        with self._connection() as connection:
            found = connection.scalar(statements.version(self.tables))
        if found is None:
            raise SchemaMissing(where=where(self.settings.database_schema))
        if found < VERSION:
            raise SchemaTooOld(found=found, needed=VERSION)
        if found > VERSION:
            raise SchemaTooNew(found=found, needed=VERSION)

    def claim(self, shares: Mapping[str, int], lease: str) -> list[Claimed]:
        """Lease up to `shares[destination]` due messages of each destination, in the order of insertion."""
        configured = self.settings.destinations
        share = [
            {"destination": name, "size": size, "ceiling": configured[name].max_attempts}
            for name, size in shares.items()
        ]
        parameters = {
            "share": json.dumps(share),
            "token": UUID(lease),
            "holder": holder(),
            "hold": self.settings.queue_lease,
        }
        return sorted(Claimed(*row) for row in self._rows(self._claim, parameters))

    def bury_unroutable(self) -> list[UUID]:
        """Make dead letters of due messages whose destination is not configured; a limited number at a time."""
        rows = self._rows(self._bury_unroutable, {"known": list(self.settings.destinations)})
        return [row.id for row in rows]

    def begin(self, bundle: Bundle) -> dict[str, LeasedMessage]:
        """Count an attempt of each message that is still ours and fetch it, by id."""
        parameters = {
            **_fence(bundle.lease, bundle.tickets),
            "target": bundle.destination,
            "holder": holder(),
            "hold": self.settings.run_lease,
        }
        return {row[0]: _leased(*row) for row in self._rows(self._begin, parameters)}

    def admit(self, lease: str) -> dict[str, bool]:
        """The destinations that are not to be claimed for: True if one message may be tried, under this lease."""
        asked = [{"destination": name} for name in self.settings.destinations]
        parameters = {"asked": json.dumps(asked), "token": UUID(lease), "hold": self.settings.queue_lease}
        return {row.name: row.tried for row in self._rows(self._admit, parameters)}

    def untried(self, destination: str, lease: str) -> None:
        """There was nothing to be tried."""
        self._do(breaker.untried(self.tables), {"target": destination, "token": UUID(lease)})

    def give_back(self, bundle: Bundle) -> int:
        """Release what was not begun because its destination is left alone; returns how many."""
        parameters = {**_fence(bundle.lease, bundle.tickets), "target": bundle.destination}
        return len(self._rows(self._give_back, parameters))

    def tripped(self, destination: str, lease: str, code: str | None, error: str | None) -> bool:
        """Count a send that found the destination out of reach. Returns whether it is left alone now."""
        settings = self.settings
        parameters = {
            "target": destination,
            "token": UUID(lease),
            "reason_code": _storable(code),
            "reason": _storable(error),
            "enough": settings.breaker_failures,
            "pause": settings.breaker_pause,
            "longest": settings.breaker_pause_max,
        }
        return bool(self._rows(self._tripped, parameters)[0].open)

    def recovered(self, destination: str) -> None:
        """The destination has answered."""
        self._do(breaker.recovered(self.tables), {"target": destination})

    def pause(self, destination: str, who: str, why: str | None) -> None:
        """Leave a destination alone until `resume`."""
        self._do(breaker.pause(self.tables), {"target": destination, "who": who, "why": why})

    def resume(self, destination: str) -> bool:
        """End a person's pause, and the breaker's. Returns whether there was one, or trouble."""
        return bool(self._rows(breaker.resume(self.tables), {"target": destination}))

    def states(self) -> list[Any]:
        """The destinations in trouble, or paused: see `breaker.states`."""
        return list(self._rows(breaker.states(self.tables), {}))

    def settle(self, lease: str, destination: str, verdicts: Sequence[Verdict]) -> set[str]:
        """Record what became of begun messages. Returns the ids that were still ours."""
        done = [v for v in verdicts if v.step in (Step.SENT, Step.DISCARDED)]
        failed = [v for v in verdicts if v.step in (Step.RETRY, Step.RELEASE, Step.OUTAGE, Step.DEAD)]
        fence = {"token": UUID(lease), "target": destination}
        settled: Sequence[Any] = []
        if done:
            parameters: dict[str, Any] = {"ticket": json.dumps([_done(v) for v in done]), **fence}
            settled = self._rows(self._settle_done, parameters)
        if failed:
            parameters = {
                "ticket": json.dumps([_failure(v, self.settings.queue_lease) for v in failed]),
                "patience": self.settings.breaker_failures,
                **fence,
            }
            settled = [*settled, *self._rows(self._settle_failed, parameters)]
        return {row[0] for row in settled}

    def release(self, lease: str, tickets: Collection[Ticket], wait: float = 0.0) -> set[str]:
        """Give back leases that were not begun; the messages are due in `wait` seconds."""
        rows = self._rows(self._release, {**_fence(lease, tickets), "hold": wait})
        return {row[0] for row in rows}

    def prepare_archive(self, days: int = 7) -> int:
        """Make the archive's partitions of today and the next `days`; returns how many were missing."""
        rows = self._rows(statements.prepare_archive(self.settings.database_schema, days), {})
        return int(rows[0][0])

    def forget(self, size: int) -> int:
        """Delete up to `size` of the inbox's marks that are older than `inbox_retention`; returns how many."""
        with self._connection() as connection:
            return connection.execute(self._forget, {"keep": self.settings.inbox_retention, "size": size}).rowcount

    def _do(self, statement: Executable, parameters: dict[str, Any]) -> None:
        with self._connection() as connection:
            connection.execute(statement, parameters)

    def _rows(self, statement: Executable, parameters: dict[str, Any]) -> Sequence[Any]:
        with self._connection() as connection:
            return connection.execute(statement, parameters).all()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            with self.engine.connect() as connection:
                yield connection
        except ProgrammingError as error:
            sqlstate = getattr(error.orig, "sqlstate", None)
            if sqlstate in LOST_TABLE:
                raise SchemaMissing(where=where(self.settings.database_schema)) from error
            if sqlstate == NO_RIGHTS:
                raise _unavailable(self.settings, error.orig) from error
            raise
        except (OperationalError, InterfaceError, InternalError) as error:
            raise _unavailable(self.settings, error.orig) from error
        except PoolTimeout as error:
            raise _unavailable(self.settings, error) from error


def _unavailable(settings: Settings, error: object) -> DatabaseUnavailable:
    reason = " ".join(str(error).split()).rstrip(".?")
    return DatabaseUnavailable(url=redacted(settings.database_url or ""), reason=reason)


def _leased(
    id: str,
    event_type: str,
    destination: str,
    key: str | None,
    payload: bytes,
    content_type: str,
    headers: str | None,
    aggregate_type: str | None,
    aggregate_id: str | None,
    created_at: float,
    attempts: int,
) -> LeasedMessage:
    return LeasedMessage(
        id,
        event_type,
        destination,
        key,
        payload,
        content_type,
        {} if headers is None else _parsed(headers),
        aggregate_type,
        aggregate_id,
        _time(created_at),
        attempts,
    )


def _parsed(headers: str) -> Any:
    """What can't be parsed stays a text, which is no headers: the message will be refused as it is sent."""
    try:
        return json.loads(headers)
    except (ValueError, RecursionError):
        return headers


def _time(seconds: float) -> datetime:
    """PostgreSQL has times that Python has not: these become the last there is."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def _fence(lease: str, tickets: Collection[Ticket]) -> dict[str, Any]:
    rows = [{"id": ticket.id, "attempt": ticket.attempt} for ticket in tickets]
    return {"ticket": json.dumps(rows), "token": UUID(lease)}


def _done(verdict: Verdict) -> dict[str, Any]:
    """What `settle_done` writes for a verdict."""
    row: dict[str, Any] = {"id": verdict.ticket.id, "attempt": verdict.ticket.attempt}
    if verdict.step is Step.DISCARDED:
        row |= {"state": "discarded", "code": _storable(verdict.code), "error": _storable(verdict.error)}
    return row


def _failure(verdict: Verdict, queue_lease: float) -> dict[str, Any]:
    """What `settle_failed` writes for a verdict. A short retry keeps its lease for the wait and the queue."""
    keep = verdict.step is Step.RETRY
    return {
        "id": verdict.ticket.id,
        "attempt": verdict.ticket.attempt,
        "hold": verdict.wait + queue_lease if keep else verdict.wait,
        "keep": keep,
        "dead": verdict.step is Step.DEAD,
        "outage": verdict.step is Step.OUTAGE,
        "code": _storable(verdict.code),
        "error": _storable(verdict.error),
    }


def _storable(error: str | None) -> str | None:
    """PostgreSQL's text takes no NUL, and UTF-8 no half of a pair."""
    return error and error.replace("\0", "\\0").encode("utf-8", "replace").decode("utf-8")
