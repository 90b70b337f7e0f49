"""SQLAlchemy's engines for the relay's database: the URL, what each connection asks for, and how it reads values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg.types.datetime import TimestamptzBinaryLoader
from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from outbox_tasks.database import sql
from outbox_tasks.database.patient import Patient
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.model import FIRST_TIME, LAST_TIME
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import HIDDEN
from outbox_tasks.settings.django_project import now_at
from outbox_tasks.text import redacted

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

NETWORK_SECONDS = 2.0
"""How much longer than `statement_timeout` an answer may take."""

ANSWER_SECONDS_WITHOUT_LIMIT = 10.0
"""How long an answer may take if `statement_timeout` is 0."""

Driver = TypeVar("Driver", bound=psycopg.Connection[Any])

LIBPQ = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
"""The options of a connection."""


def engine_url(url: str) -> URL:
    """The SQLAlchemy URL of a PostgreSQL URL as people write it, with psycopg 3 as the driver, whichever it names."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:
        rule = "it must be a URL such as postgresql://user@host:5432/database"
        raise ConfigurationError(setting="database_url", value=HIDDEN, rule=rule) from error
    backend = {"postgres": "postgresql"}.get(backend, backend)
    sql.check_dialect(backend)
    if unknown := sorted(set(parsed.query) - LIBPQ):
        rule = f"PostgreSQL knows no option {unknown[0]} of a connection"
        raise ConfigurationError(setting="database_url", value=redacted(url), rule=rule)
    if parsed.host and "%2f" in parsed.host.lower():  # the directory of a socket, as libpq reads it
        parsed = parsed._replace(host=None).update_query_dict({"host": unquote(parsed.host)})  # `set` ignores None
    return parsed.set(drivername="postgresql+psycopg")


class _AnyTime(TimestamptzBinaryLoader):
    """Reads times that Python can't represent as the nearest one that it can: infinite times, and those outside the
    years 1 to 9999. Anybody can write rows with such times, and one must not make a whole answer unreadable."""

    def load(self, data: Any) -> datetime:
        try:
            return min(max(super().load(data), FIRST_TIME), LAST_TIME)
        except psycopg.DataError:
            return FIRST_TIME if bytes(data)[0] & 0x80 else LAST_TIME


def _any_json(text: bytes) -> Any:
    """A JSON value; the text itself, if it is nested too deeply or has a number too long for Python. See `_AnyTime`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.decode()


def _reads_any_time(connection: Any, _: object) -> None:
    connection.adapters.register_loader("timestamptz", _AnyTime)


def relay_engine(settings: Settings, application_name: str, session: Mapping[str, str]) -> Engine:
    """An engine on which every statement is a transaction of its own, with the time limits of the relay. `session`: the
    settings of its connections, if they can have any: see `start_options`."""
    timeout = int(settings.statement_timeout * 1000)
    engine = create_engine(
        engine_url(database_url(settings)),
        # Every statement is its own transaction: no BEGIN, no COMMIT, nothing left open by a crash.
        isolation_level="AUTOCOMMIT",
        pool_reset_on_return=None,
        pool_size=2,
        max_overflow=8,
        pool_timeout=5,
        pool_use_lifo=True,  # a server process that has just run this statement runs it faster
        use_native_hstore=False,  # saves a query for each connection
        json_deserializer=_any_json,
        connect_args={
            "connect_timeout": 5,
            "client_encoding": "utf8",
            "application_name": application_name,
            # The system notices a dead peer only after a statement's time limit.
            "tcp_user_timeout": 10_000,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 2,
            **start_options(settings, {**session, "statement_timeout": str(timeout)}),
        },
    )
    event.listen(engine, "connect", _reads_any_time)
    patience = settings.statement_timeout + NETWORK_SECONDS if timeout else ANSWER_SECONDS_WITHOUT_LIMIT

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, keywords: Any) -> Patient:
        if name := engine_url(database_url(settings)).database:  # only now, because Django's tests move it
            keywords["dbname"] = name
        driver = _connected(settings, Patient, arguments, keywords)
        driver.patience = patience
        return driver

    return engine


def migrating_engine(settings: Settings) -> Engine:
    """An engine without the time limits of the pipe."""
    engine = create_engine(
        engine_url(database_url(settings)),
        connect_args={"connect_timeout": 5, "client_encoding": "utf8", **start_options(settings, SESSION)},
        poolclass=NullPool,
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, keywords: Any) -> psycopg.Connection[Any]:
        return _connected(settings, psycopg.Connection, arguments, keywords)

    return engine


def _connected(settings: Settings, kind: type[Driver], arguments: Any, keywords: Any) -> Driver:
    """A new connection, with the password of `database_password` if there is one."""
    password = settings.database_password
    if password is None:
        return kind.connect(*arguments, **keywords)
    try:
        return kind.connect(*arguments, **{**keywords, "password": password.ask()})
    except psycopg.OperationalError as error:
        if error.pgconn is None or not error.pgconn.used_password:  # it was not refused for its password
            raise
    return kind.connect(*arguments, **{**keywords, "password": password.ask_anew()})


def database_url(settings: Settings) -> str:
    if settings.database_url is None:
        rule = "it is needed here; set OUTBOX_DATABASE_URL, for example postgresql://user@host/database"
        raise ConfigurationError(setting="database_url", value=None, rule=rule)
    return now_at(settings.database_url)


def start_options(settings: Settings, wanted: Mapping[str, str]) -> dict[str, str]:
    """The start-up options for these settings, after the options of the URL. None if `statement_timeout` is 0: then a
    pooler between may refuse options."""
    if not settings.statement_timeout:
        return {}
    of_url = engine_url(database_url(settings)).query.get("options", "")
    of_relay = ("-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in wanted.items())
    return {"options": " ".join([*([of_url] if isinstance(of_url, str) else of_url), *of_relay])}
