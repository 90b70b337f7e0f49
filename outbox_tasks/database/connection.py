"""The relay's own connections to its database, and the errors that trouble with them becomes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, Self

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outbox_tasks.database import sql
from outbox_tasks.database.engine import NETWORK_SECONDS, PIPE, migrating_engine, relay_engine
from outbox_tasks.database.patient import NoAnswer, Patient
from outbox_tasks.database.schema import LOST_TABLE, NO_RIGHTS, tables, where
from outbox_tasks.errors import (
    DatabaseTooSlow,
    DatabaseUnavailable,
    PasswordUnavailable,
    RightsMissing,
    SchemaMissing,
)
from outbox_tasks.settings import Settings
from outbox_tasks.settings.django_project import now_at
from outbox_tasks.text import redacted, without_secrets

READ_ONLY = "25006"
"""SQLSTATE of a server that takes no writes, such as the old primary after a failover."""

REMEDIES = {
    "check_enable_rls": (
        "Row-level security would hide rows from this role, and nobody would see why they are not sent. Switch it off "
        "for the outbox's tables (ALTER TABLE … DISABLE ROW LEVEL SECURITY), or let the role see all rows (ALTER ROLE "
        "… BYPASSRLS). `outbox-tasks doctor` prints the statements."
    ),
    "LockAcquireExtended": (
        "A look for a message locks each day that is kept. Keep fewer days (archive_retention), or raise "
        "max_locks_per_transaction."
    ),
}
"""The remedy where one of these functions of PostgreSQL has refused a statement."""

SLOW_TRIP_SECONDS = 0.25
"""A round trip of so many seconds counts as slow: a claim needs half a dozen."""

TROUBLE = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, PoolTimeout, PasswordUnavailable)
"""What a database that can't be reached, or can't do its work, raises."""


@contextmanager
def migrating(settings: Settings) -> Iterator[Connection]:
    """A connection in a transaction, without the time limits of the pipe, for `migrations.upgrade`."""
    engine = migrating_engine(settings)
    try:
        with engine.begin() as connection:
            yield connection
    except (OperationalError, InterfaceError, InternalError) as error:
        raise _unavailable(settings, error.orig) from error
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != NO_RIGHTS:
            raise
        act = f"make or change the outbox tables in {where(settings.database_schema)}"
        remedy = (
            "Do it as the owner of the tables. If there are none yet, the owner of the schema can let this role make "
            f"them: GRANT CREATE ON SCHEMA … TO {engine.url.username}."
        )
        raise RightsMissing(act=act, reason=error.orig, remedy=remedy) from error


class Run(Protocol):
    """Runs a verb and returns its rows."""

    def __call__(self, verb: str, /, **parameters: Any) -> Sequence[Any]: ...


class Database:
    """Runs statements, each its own short transaction. Raises `DatabaseUnavailable` or `SchemaMissing`."""

    application_name = "outbox_tasks"
    """The name of its connections in `pg_stat_activity`."""

    # Otherwise PostgreSQL plans each claim anew, which takes a millisecond. The plan is always the same.
    session: ClassVar[Mapping[str, str]] = {**PIPE, "plan_cache_mode": "force_generic_plan"}
    """The settings of its connections, if they can have any: see `engine.start_options`."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        sql.check_dialect(engine.dialect.name)
        self.engine = engine
        self.settings = settings
        self.tables = tables(settings.database_schema)

    @classmethod
    def connect(cls, settings: Settings) -> Self:
        """Make one with its own engine for `settings.database_url`. It connects when first used."""
        return cls(relay_engine(settings, cls.application_name, cls.session), settings)

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    def ask(self, verb: str, limit: float | None = None, /, **parameters: Any) -> Sequence[Any]:
        """Run a verb in a transaction of its own, and return its rows. `limit`: seconds that it may run, if not the
        usual ones."""
        if limit is not None:
            with self.transaction(limit) as run:
                return run(verb, **parameters)
        with self._driver() as driver:
            return self._execute(driver, verb, parameters)

    @contextmanager
    def transaction(self, limit: float | None = None) -> Iterator[Run]:
        """Run several verbs in one transaction. If this process is stopped meanwhile, the server undoes them soon.
        `limit`: see `ask`."""
        with self._begun(limit) as driver:
            yield lambda verb, /, **parameters: self._execute(driver, verb, parameters)

    @contextmanager
    def rolled_back(self, limit: float) -> Iterator[Run]:
        """Run verbs in a transaction that is undone at its end. `limit`: see `ask`."""
        with self._begun(limit, end="ROLLBACK") as driver:
            yield lambda verb, /, **parameters: self._execute(driver, verb, parameters)

    @contextmanager
    def _begun(self, limit: float | None = None, end: str = "COMMIT") -> Iterator[Patient]:
        with self._driver() as driver, _patient(driver, limit):
            driver.execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5s'", prepare=False)
            try:
                if limit is not None:
                    driver.execute("SELECT set_config('statement_timeout', %s, true)", [f"{limit * 1000:.0f}"])
                yield driver
            except BaseException:
                if not driver.closed:
                    driver.execute("ROLLBACK", prepare=False)
                raise
            driver.execute(end)

    def _execute(self, driver: psycopg.Connection[Any], verb: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
        statement = sql.statement(verb, self.settings.database_schema)
        cursor = psycopg.RawCursor(driver, row_factory=namedtuple_row)
        cursor.execute(statement.text, statement.values(parameters), binary=True)
        answer = cursor.pgresult  # not `description`: that describes each column, in a tenth of the time of a single
        return cursor.fetchall() if answer and answer.status == psycopg.pq.ExecStatus.TUPLES_OK else ()

    @contextmanager
    def _driver(self) -> Iterator[Patient]:
        try:
            pooled = self.engine.raw_connection()
            driver: Patient = pooled.driver_connection  # type: ignore[assignment]
            try:
                yield driver
            except BaseException as error:
                self._part_with(pooled, driver, error)
                raise
            finally:
                pooled.close()
        except (psycopg.Error, PoolTimeout, PasswordUnavailable) as error:
            self._raise_ours(error)
            raise

    def _part_with(self, pooled: PoolProxiedConnection, driver: Patient, error: BaseException) -> None:
        """Whoever borrows a connection next finds it in order, or is given a new one."""
        lost = driver.closed
        # An interruption, by a time limit or a person, leaves the conversation anywhere. And after a failover the next
        # connection may lead to the new primary.
        if lost or not isinstance(error, psycopg.Error) or error.sqlstate == READ_ONLY:
            pooled.invalidate()
        if lost:
            self.engine.dispose()  # the other idle ones have lost the server too

    def round_trip(self) -> float:
        """Seconds that the shortest statement takes, the shorter of two."""

        def once(driver: Patient) -> float:
            began = time.monotonic()
            driver.execute("SELECT 1")
            return time.monotonic() - began

        with self._driver() as driver:
            return min(once(driver), once(driver))

    @contextmanager
    def alone(self, what: str) -> Iterator[bool]:
        """Whether nobody else does `what` in this outbox. If so, nobody can begin it until this ends.

        If the process ends, its connection ends, and the lock with it. The lock belongs to a transaction, because
        behind PgBouncer a session is shared. The transaction has no snapshot, so it does not hold back vacuum."""
        with self._begun() as driver:
            place = self.settings.database_schema
            [row] = self._execute(driver, "keep/alone.sql", {"what": what, "place": place})
            # It may stay idle. This command needs no snapshot, so it also gives up that of the statement before it.
            driver.execute("SET LOCAL idle_in_transaction_session_timeout = 0", prepare=False)
            yield bool(row.ours)

    def query(self, text: str, *values: Any) -> Sequence[Any]:
        """Run a statement that is no verb, and return its rows."""
        with self._driver() as driver:
            cursor = driver.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def _raise_ours(self, error: BaseException | None) -> None:
        """Raise trouble with the database as our own error. Returns if `error` is our own mistake."""
        sqlstate = getattr(error, "sqlstate", None)
        if sqlstate in LOST_TABLE:
            raise SchemaMissing(where=where(self.settings.database_schema)) from error
        if isinstance(error, TROUBLE) or sqlstate == NO_RIGHTS:
            raise _unavailable(self.settings, error) from error


@contextmanager
def _patient(driver: Patient, limit: float | None) -> Iterator[None]:
    """Wait for longer for the answers of this connection."""
    usual = driver.patience
    driver.patience = usual if limit is None else limit + NETWORK_SECONDS
    try:
        yield
    finally:
        driver.patience = usual


def lacks_rights(error: DatabaseUnavailable) -> bool:
    """Whether our role may not do what it asked for."""
    return getattr(error.__cause__, "sqlstate", None) == NO_RIGHTS


def _unavailable(settings: Settings, error: object) -> DatabaseUnavailable:
    url = now_at(settings.database_url or "")
    # Where in a function of ours it happened would be pages of SQL.
    text = str(error).partition("\nCONTEXT:")[0]
    reason = without_secrets(" ".join(text.split()).rstrip(".?"), url)
    if isinstance(error, NoAnswer | psycopg.errors.QueryCanceled):
        return DatabaseTooSlow(url=redacted(url), reason=reason)
    # The text of a refusal can be in any language, the name of the function can't.
    function = error.diag.source_function if isinstance(error, psycopg.Error) else None
    remedy = {"remedy": REMEDIES[function]} if function in REMEDIES else {}
    return DatabaseUnavailable(url=redacted(url), reason=reason, **remedy)
