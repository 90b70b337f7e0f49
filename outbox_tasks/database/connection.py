"""How the relay reaches its database: connections of its own, and what trouble with them is called."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self

import psycopg
from psycopg.types.datetime import TimestamptzLoader
from sqlalchemy import URL, Connection, Engine, Executable, NullPool, create_engine, event, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outbox_tasks.database.pieces import alone, check_dialect, idle, unhurried
from outbox_tasks.database.schema import LOST_TABLE, NO_RIGHTS, tables, where
from outbox_tasks.errors import ConfigurationError, DatabaseTooSlow, DatabaseUnavailable, SchemaMissing
from outbox_tasks.model import FIRST, LAST
from outbox_tasks.redaction import redacted, without_secrets
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import HIDDEN

SESSION = {
    "DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "TimeZone": "UTC", "bytea_output": "hex",
    "standard_conforming_strings": "on", "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off", "idle_session_timeout": "0",
}  # fmt: skip
"""What we rely on, and a role or a database may have other defaults for."""

PLANNING = {f"enable_{kind}": "off" for kind in ("seqscan", "bitmapscan", "hashjoin", "mergejoin")} | {"jit": "off"}
"""Every statement reaches its rows by index. A plan made while the table was empty must not say otherwise later."""

PIPE = {**SESSION, **PLANNING, "lock_timeout": "0"}
"""What the pipe relies on; statements have their own limit."""

READ_ONLY = "25006"
"""SQLSTATE of a server that takes no writes, as one that was the primary before a failover."""

ON_ITS_WAY = 2.0
"""Seconds that an answer may take beyond `statement_timeout`, within which the server gives one."""

SLOW_TRIP = 0.25
"""Seconds for a question and its answer, from which on the database counts as slow: a claim asks half a dozen."""

UNLIMITED = 10.0
"""Seconds for which an answer is awaited where `statement_timeout` is 0."""


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


class _AnyTime(TimestamptzLoader):
    """Reads the times too that Python has not: infinite ones, and those beyond the years 1 to 9999. Anybody can write
    rows with such times, and they must not hide the others."""

    def load(self, data: Any) -> datetime:
        try:
            return min(max(super().load(data), FIRST), LAST)
        except psycopg.DataError:
            return FIRST if bytes(data).startswith(b"-") or bytes(data).endswith(b"BC") else LAST


def _reads_any_time(connection: Any, _: object) -> None:
    connection.adapters.register_loader("timestamptz", _AnyTime)


class Patient(psycopg.Connection[Any]):
    """A connection that waits for an answer only so long, whatever the server and the network do meanwhile.

    A server that hangs, or a peer that is gone without a word, still takes what is sent: no timeout of the server's
    and none of TCP's ends the wait for its answer.
    """

    patience: float | None = None
    """Seconds; None: for ever."""

    def wait(self, gen: Any, *arguments: Any, **keywords: Any) -> Any:
        """Run a conversation with the server: see `psycopg.Connection.wait`."""
        try:
            return super().wait(self._in_time(gen), *arguments, **keywords)
        except psycopg.Error:
            raise
        except BaseException:
            # A time limit, say: whoever used this connection next would be given the answer to what was asked here.
            self.close()
            raise

    def _in_time(self, conversation: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        began, patience = time.monotonic(), self.patience
        try:
            wanted = next(conversation)
            while True:
                ready = yield wanted
                # An answer that is there is read, however late we are ourselves.
                if not ready and patience is not None and time.monotonic() - began > patience:
                    self.close()
                    raise NoAnswer(f"no answer within {patience:g} s; the connection is given up")
                wanted = conversation.send(ready)
        except StopIteration as end:
            return end.value


class NoAnswer(psycopg.OperationalError):
    """Told instead of an answer that did not come."""


@contextmanager
def migrating(settings: Settings) -> Iterator[Connection]:
    """A connection in a transaction of its own, without the limits of the pipe, for `migrations.upgrade`."""
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


class Database:
    """Runs statements, each its own short transaction. Raises `DatabaseUnavailable` or `SchemaMissing`."""

    application_name = "outbox_tasks"
    """As what its connections are known to the database."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        check_dialect(engine.dialect.name)
        self.engine = engine
        self.settings = settings
        self.tables = tables(settings.database_schema)

    @classmethod
    def connect(cls, settings: Settings) -> Self:
        """With an engine of its own for `settings.database_url`. Connects when first used."""
        timeout = int(settings.statement_timeout * 1000)
        engine = create_engine(
            engine_url(_database_url(settings)),
            # Every statement is its own transaction: no BEGIN, no COMMIT, nothing left open by a crash.
            isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,
            pool_size=2,
            max_overflow=8,
            pool_timeout=5,
            use_native_hstore=False,  # nothing here is one, and to ask for it takes its time
            hide_parameters=True,  # no error may quote what is in a row
            connect_args={
                "connect_timeout": 5,
                "client_encoding": "utf8",
                "application_name": cls.application_name,
                # A dead peer is noticed by the system when the statement could not have been running any more.
                "tcp_user_timeout": 10_000,
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 2,
                **_options(settings, {**PIPE, "statement_timeout": str(timeout)}),
            },
        )
        event.listen(engine, "connect", _reads_any_time)
        patience = settings.statement_timeout + ON_ITS_WAY if timeout else UNLIMITED

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, arguments: Any, keywords: Any) -> Patient:
            made = Patient.connect(*arguments, **keywords)
            made.patience = patience
            return made

        return cls(engine, settings)

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    def do(self, statement: Executable, parameters: dict[str, Any]) -> int:
        """Run a statement; returns how many rows it changed, where the database counts them."""
        with self.connection() as connection:
            return connection.execute(statement, parameters).rowcount

    def rows(self, statement: Executable, parameters: dict[str, Any], limit: float | None = None) -> Sequence[Any]:
        """The rows that a statement returns. `limit`: seconds that it may run, if not the usual."""
        with self.connection() as connection:
            if limit is None:
                return connection.execute(statement, parameters).all()
            with _unhurried(connection, limit) as transaction:
                return transaction.execute(statement, parameters).all()

    def round_trip(self) -> float:
        """Seconds from a question to its answer, where there is nothing to be found out."""

        def once(connection: Connection) -> float:
            began = time.monotonic()
            connection.execute(select(1))
            return time.monotonic() - began

        with self.connection() as connection:
            first = once(connection)
            return first if first < SLOW_TRIP else min(first, once(connection))

    @contextmanager
    def alone(self, what: str) -> Iterator[bool]:
        """Whether nobody else does `what` in this outbox, and nobody will until this ends.

        The lock goes with its connection, so with its process. It is a transaction's, since behind PgBouncer nothing
        else is ours; of one that has no snapshot between its statements, and so holds back neither vacuum nor anybody.
        """
        with self.connection() as connection:
            transaction = connection.execution_options(isolation_level="READ COMMITTED")
            with transaction.begin():
                ours = transaction.execute(alone(self.settings.database_schema, what)).scalar()
                transaction.execute(idle())
                yield bool(ours)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection on which every statement is its own transaction."""
        try:
            with self.engine.connect() as connection, _unharmed(connection):
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


@contextmanager
def _unhurried(connection: Connection, seconds: float) -> Iterator[Connection]:
    """A transaction whose statements may run for so long."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, Patient)
    transaction = connection.execution_options(isolation_level="READ COMMITTED")
    usual, driver.patience = driver.patience, seconds + ON_ITS_WAY
    try:
        with transaction.begin():
            transaction.execute(unhurried(), {"limit": f"{seconds * 1000:.0f}"})
            yield transaction
    finally:
        driver.patience = usual


@contextmanager
def _unharmed(connection: Connection) -> Iterator[None]:
    """Whoever borrows the connection next finds it in order, or is given a new one."""
    try:
        yield
    except DBAPIError as error:
        # After a failover the next one may lead to the new primary.
        if getattr(error.orig, "sqlstate", None) == READ_ONLY:
            connection.invalidate()
        raise
    except BaseException:
        # It was interrupted, by a time limit or a person, and nobody knows where.
        connection.invalidate()
        raise


def _database_url(settings: Settings) -> str:
    if settings.database_url is None:
        rule = "it is needed here; set OUTBOX_DATABASE_URL, for example postgresql://user@host/database"
        raise ConfigurationError(setting="database_url", value=None, rule=rule)
    return settings.database_url


def _options(settings: Settings, wanted: Mapping[str, str]) -> dict[str, str]:
    """The start-up options that ask for these settings, behind those of the URL; none where none are to be sent."""
    if not settings.statement_timeout:
        return {}
    theirs = engine_url(_database_url(settings)).query.get("options", "")
    ours = ("-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in wanted.items())
    return {"options": " ".join([*([theirs] if isinstance(theirs, str) else theirs), *ours])}


def _unavailable(settings: Settings, error: object) -> DatabaseUnavailable:
    url = settings.database_url or ""
    reason = without_secrets(" ".join(str(error).split()).rstrip(".?"), url)
    late = isinstance(error, NoAnswer | psycopg.errors.QueryCanceled)
    return (DatabaseTooSlow if late else DatabaseUnavailable)(url=redacted(url), reason=reason)
