"""The relay's own connections to its database, and the errors that trouble with them becomes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, Protocol, Self, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Executable,
    NullPool,
    PoolProxiedConnection,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outbox_tasks import sql
from outbox_tasks.database.patient import NoAnswer, Patient
from outbox_tasks.database.schema import LOST_TABLE, NO_RIGHTS, tables, where
from outbox_tasks.errors import (
    ConfigurationError,
    DatabaseTooSlow,
    DatabaseUnavailable,
    RightsMissing,
    SchemaMissing,
)
from outbox_tasks.model import FIRST, LAST
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import HIDDEN
from outbox_tasks.settings.django_project import now_at
from outbox_tasks.text import redacted, without_secrets

T = TypeVar("T")

SESSION = {
    "DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "TimeZone": "UTC", "bytea_output": "hex",
    "standard_conforming_strings": "on", "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off", "idle_session_timeout": "0", "row_security": "off",
}  # fmt: skip
"""Settings that we rely on. A role or a database may have other defaults. With `row_security` off, a statement fails
where row-level security would hide rows: nobody would know of messages that a claim can't see."""

PLANNING = {f"enable_{kind}": "off" for kind in ("seqscan", "bitmapscan", "hashjoin", "mergejoin")} | {"jit": "off"}
"""Every statement must find its rows by index, even if its plan was made while the table was empty."""

PIPE = {**SESSION, **PLANNING, "lock_timeout": "0"}
"""The settings of the pipe. Its statements have a time limit, so locks need none."""

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
        "max_locks_per_transaction: `outbox-tasks doctor` says how far."
    ),
}
"""The remedy where one of these functions of PostgreSQL has refused a statement."""

NETWORK_TIME = 2.0
"""The server ends a statement within `statement_timeout`; its answer may take so many seconds more."""

SLOW_TRIP = 0.25
"""A round trip of so many seconds counts as slow: a claim needs half a dozen."""

TROUBLE = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, PoolTimeout)
"""What a database that can't be reached, or can't do its work, raises."""

LIBPQ = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
"""The options of a connection."""

WITHOUT_LIMIT = 10.0
"""Seconds to wait for an answer if `statement_timeout` is 0."""


def engine_url(url: str) -> URL:
    """The SQLAlchemy URL of a PostgreSQL URL as people write it, with psycopg 3 as the driver."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:
        rule = "it must be a URL such as postgresql://user@host:5432/database"
        raise ConfigurationError(setting="database_url", value=HIDDEN, rule=rule) from error
    backend = {"postgres": "postgresql"}.get(backend, backend)
    sql.check_dialect(backend)
    if parsed.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        rule = "the relay speaks to PostgreSQL through psycopg 3: postgresql+psycopg://…, or just postgresql://…"
        raise ConfigurationError(setting="database_url", value=redacted(url), rule=rule)
    if unknown := sorted(set(parsed.query) - LIBPQ):
        rule = f"PostgreSQL knows no option {unknown[0]} of a connection"
        raise ConfigurationError(setting="database_url", value=redacted(url), rule=rule)
    if parsed.host and "%2f" in parsed.host.lower():  # the directory of a socket, as libpq reads it
        parsed = parsed._replace(host=None).update_query_dict({"host": unquote(parsed.host)})  # `set` ignores None
    return parsed.set(drivername="postgresql+psycopg")


class _AnyTime(TimestamptzLoader):
    """Reads times that Python can't represent as the nearest one that it can: infinite times, and those outside the
    years 1 to 9999. Anybody can write rows with such times, and one must not make a whole answer unreadable."""

    def load(self, data: Any) -> datetime:
        try:
            return min(max(super().load(data), FIRST), LAST)
        except psycopg.DataError:
            return FIRST if bytes(data).startswith(b"-") or bytes(data).endswith(b"BC") else LAST


class _AnyTimeInBinary(TimestamptzBinaryLoader):
    """The same, of a result in PostgreSQL's binary format."""

    def load(self, data: Any) -> datetime:
        try:
            return min(max(super().load(data), FIRST), LAST)
        except psycopg.DataError:
            return FIRST if bytes(data)[0] & 0x80 else LAST


def _any_json(text: str | bytes) -> Any:
    """A JSON value; the text itself, if it is nested too deeply or has a number too long for Python. See `_AnyTime`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode()


def _reads_any_time(connection: Any, _: object) -> None:
    connection.adapters.register_loader("timestamptz", _AnyTime)
    connection.adapters.register_loader("timestamptz", _AnyTimeInBinary)


@contextmanager
def migrating(settings: Settings) -> Iterator[Connection]:
    """A connection in a transaction, without the time limits of the pipe, for `migrations.upgrade`."""
    engine = create_engine(
        engine_url(_database_url(settings)),
        connect_args={"connect_timeout": 5, "client_encoding": "utf8", **_options(settings, SESSION)},
        poolclass=NullPool,
    )
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
    """The settings of its connections, if they can have any: see `_options`."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        sql.check_dialect(engine.dialect.name)
        self.engine = engine
        self.settings = settings
        self.tables = tables(settings.database_schema)

    @classmethod
    def connect(cls, settings: Settings) -> Self:
        """Make one with its own engine for `settings.database_url`. It connects when first used."""
        timeout = int(settings.statement_timeout * 1000)
        engine = create_engine(
            engine_url(_database_url(settings)),
            # Every statement is its own transaction: no BEGIN, no COMMIT, nothing left open by a crash.
            isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,
            pool_size=2,
            max_overflow=8,
            pool_timeout=5,
            pool_use_lifo=True,  # a server process that has just run this statement runs it faster
            use_native_hstore=False,  # saves a query for each connection
            json_deserializer=_any_json,
            hide_parameters=True,  # no error may quote the contents of a row
            connect_args={
                "connect_timeout": 5,
                "client_encoding": "utf8",
                "application_name": cls.application_name,
                # The system notices a dead peer only after a statement's time limit.
                "tcp_user_timeout": 10_000,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 2,
                **_options(settings, {**cls.session, "statement_timeout": str(timeout)}),
            },
        )
        event.listen(engine, "connect", _reads_any_time)
        patience = settings.statement_timeout + NETWORK_TIME if timeout else WITHOUT_LIMIT

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, arguments: Any, keywords: Any) -> Patient:
            if name := engine_url(_database_url(settings)).database:  # only now, because Django's tests move it
                keywords["dbname"] = name
            made = Patient.connect(*arguments, **keywords)
            made.patience = patience
            return made

        return cls(engine, settings)

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    def rows(self, statement: Executable, parameters: dict[str, Any]) -> Sequence[Any]:
        """Run a statement of SQLAlchemy's and return its rows."""
        with self.connection() as connection:
            return connection.execute(statement, parameters).all()

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
    def _begun(self, limit: float | None = None) -> Iterator[Patient]:
        with self._driver() as driver, _patient(driver, limit):
            driver.execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5s'", prepare=False)
            if limit is not None:
                driver.execute("SELECT set_config('statement_timeout', %s, true)", [f"{limit * 1000:.0f}"])
            try:
                yield driver
            except BaseException:
                if not driver.closed:
                    driver.execute("ROLLBACK", prepare=False)
                raise
            driver.execute("COMMIT")

    @contextmanager
    def rolled_back(self, limit: float) -> Iterator[Run]:
        """Run verbs in a transaction that is undone at its end. `limit`: see `ask`."""
        with self._driver() as driver, _patient(driver, limit):
            driver.execute("BEGIN", prepare=False)
            try:
                driver.execute("SELECT set_config('statement_timeout', %s, true)", [f"{limit * 1000:.0f}"])
                yield lambda verb, /, **parameters: self._execute(driver, verb, parameters)
            finally:
                if not driver.closed:
                    driver.execute("ROLLBACK", prepare=False)

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
        except (psycopg.Error, PoolTimeout) as error:
            self._raise_ours(error)
            raise

    def _part_with(self, pooled: PoolProxiedConnection, driver: Patient, error: BaseException) -> None:
        """Whoever borrows a connection next finds it in order, or is given a new one."""
        lost = driver.closed or driver.broken
        # An interruption, by a time limit or a person, leaves the conversation anywhere. And after a failover the next
        # connection may lead to the new primary.
        if lost or not isinstance(error, psycopg.Error) or error.sqlstate == READ_ONLY:
            pooled.invalidate()
        if lost:
            self.engine.dispose()  # the other idle ones have lost the server too

    def round_trip(self) -> float:
        """Seconds that the shortest statement takes."""

        def once(driver: Patient) -> float:
            began = time.monotonic()
            driver.execute("SELECT 1")
            return time.monotonic() - began

        with self._driver() as driver:
            first = once(driver)
            return first if first < SLOW_TRIP else min(first, once(driver))

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

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection on which every statement is its own transaction."""
        try:
            with self.engine.connect() as connection, _unharmed(connection):
                yield connection
        except DBAPIError as error:
            self._raise_ours(error.orig)
            raise
        except PoolTimeout as error:
            self._raise_ours(error)

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
    driver.patience = usual if limit is None else limit + NETWORK_TIME
    try:
        yield
    finally:
        driver.patience = usual


@contextmanager
def _unharmed(connection: Connection) -> Iterator[None]:
    """Close the connection if its state is unknown, so that the next user gets a new one."""
    try:
        yield
    except DBAPIError as error:
        # After a failover a new connection may lead to the new primary.
        if getattr(error.orig, "sqlstate", None) == READ_ONLY:
            connection.invalidate()
        raise
    except BaseException:
        # A time limit or a person interrupted it somewhere.
        connection.invalidate()
        raise


def _database_url(settings: Settings) -> str:
    if settings.database_url is None:
        rule = "it is needed here; set OUTBOX_DATABASE_URL, for example postgresql://user@host/database"
        raise ConfigurationError(setting="database_url", value=None, rule=rule)
    return now_at(settings.database_url)


def _options(settings: Settings, wanted: Mapping[str, str]) -> dict[str, str]:
    """The start-up options for these settings, after the options of the URL. None if `statement_timeout` is 0: then a
    pooler between may refuse options."""
    if not settings.statement_timeout:
        return {}
    theirs = engine_url(_database_url(settings)).query.get("options", "")
    ours = ("-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in wanted.items())
    return {"options": " ".join([*([theirs] if isinstance(theirs, str) else theirs), *ours])}


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
