"""The database that has a feed. One class for each dialect says how its rows are read and deleted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from outbox_tasks.database import sql
from outbox_tasks.errors import ConfigurationError, SourceTrouble
from outbox_tasks.feeds.tables import statements
from outbox_tasks.text import redacted, said, without_secrets

ROWS_COUNTED = 10_000
"""`lag` counts up to so many rows."""

LOOK_BYTES = 16 * 1024 * 1024
"""A look that has read rows of so many bytes reads no more."""

MESSAGE_BYTES = 400 * 1024 * 1024
"""A message of up to so many bytes is read as a whole: the largest `max_bytes` in base64, and some more."""

SOURCES = {
    "postgres": "outbox_tasks.feeds.postgres:PostgresSource",
    "postgresql": "outbox_tasks.feeds.postgres:PostgresSource",
    "mysql": "outbox_tasks.feeds.mysql:MySQLSource",
    "mariadb": "outbox_tasks.feeds.mysql:MySQLSource",
    "sqlite": "outbox_tasks.feeds.sqlite:SQLiteSource",
}


class Row(NamedTuple):
    """A row of a feed."""

    number: int
    id: str
    key: str | None
    size: int
    """Bytes of the message."""
    message: str
    """If it has more than `MESSAGE_BYTES` bytes, its beginning."""


class Source(ABC):
    """A feed in its database. It connects when first used; after trouble, at the next use.

    A call waits at most `timeout` seconds for a sign of the server, and raises `SourceTrouble`. A source is for one
    thread at a time."""

    dialect: ClassVar[str]
    style: ClassVar[str]
    """How its driver marks parameters."""

    def __init__(self, name: str, url: URL, schema: str | None, timeout: float) -> None:
        self.name = name
        self.timeout = timeout
        self._url = url
        self._schema = schema
        self._open: Any = None
        self._by_hand = False

    def look(self, most: int) -> list[Row]:
        """The first rows that may be copied now, by number. No later commit can bring an earlier row of their keys."""
        with self._connection() as connection:
            return self._look(connection, most)

    def delete(self, rows: Sequence[tuple[int, str]]) -> None:
        """Delete rows by number and id: a source that was restored may have given a number again. A row that is gone
        already is no error."""
        with self._connection() as connection:
            self._delete(connection, rows)

    def undeletable(self, row: Row) -> SourceTrouble:
        """The trouble with a row that is still there after `delete`."""
        return self._trouble(
            f"its row {row.number} is still there after it was deleted. A trigger, a rule or row level security may "
            "keep it, or the reads go to a replica"
        )

    def lag(self) -> tuple[int, float]:
        """How many rows there are, counted to `ROWS_COUNTED`, and the age of the oldest in seconds."""
        with self._connection() as connection:
            count, age = self._rows(connection, "lag", most=ROWS_COUNTED)[0]
            # anybody can write an infinite time
            return count, min(max(0.0, float(age or 0.0)), 1e10)

    def init(self) -> str:
        """Create the tables that are missing. Returns the statements that were run. A person does this, so `PGPASSWORD`
        and the like count, as for psql. For the relay only the URL counts."""
        self._by_hand = True
        with self._connection() as connection:
            for statement in self._statements():
                self._execute(connection, statement)
        return "".join(f"{statement};\n\n" for statement in self._statements())

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _look(self, connection: Any, most: int) -> list[Row]: ...

    @abstractmethod
    def _delete(self, connection: Any, rows: Sequence[tuple[int, str]]) -> None: ...

    @abstractmethod
    def _lacks_table(self, error: Exception) -> bool:
        """Whether a driver's error says that the table of the feed is missing."""

    def _is_stale(self) -> bool:
        """Whether the open connection leads somewhere else than a new one would."""
        return False

    def _statements(self) -> list[str]:
        return statements(self.dialect, self._schema, languages=True)

    def _execute(self, connection: Any, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows. Values are never part of the text."""
        cursor = connection.cursor()
        cursor.execute(text, values) if values else cursor.execute(text)
        return list(cursor.fetchall()) if cursor.description else []

    def _rows(self, connection: Any, verb: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a file of this dialect."""
        statement = self._verb(verb)
        return self._execute(connection, statement.text.decode(), statement.values(parameters))

    def _verb(self, verb: str) -> sql.Statement:
        folder = sql.FEEDS[self.dialect]
        return sql.statement(f"feeds/{folder}/{verb}.sql", self._schema, self.style, sql.quote_of(self.dialect))

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """The connection. It is given up after any trouble, because nobody knows in which state it is."""
        if self._open is not None and self._is_stale():
            self.close()
        try:
            if self._open is None:
                self._open = self._connect()
            yield self._open
        except BaseException as error:  # such as a task's time limit
            self.close()
            if isinstance(error, Exception) and not isinstance(error, SourceTrouble):
                reason = " ".join(said(error).split()).rstrip(".?")
                hint = ". Make it with `outbox-tasks feed init`" if self._lacks_table(error) else ""
                raise self._trouble(reason + hint) from error
            raise

    def _trouble(self, reason: str) -> SourceTrouble:
        reason = f"{without_secrets(reason, self._text)}. The rows wait in the source, and the next run tries again"
        return SourceTrouble(name=self.name, url=redacted(self._text), reason=reason)

    @property
    def _text(self) -> str:
        return self._url.render_as_string(hide_password=False)


def open_source(name: str, url: str, schema: str | None = None, timeout: float = 10.0) -> Source:
    """The source of a feed, by the URL's scheme. It connects when first used. Raises `ConfigurationError`."""
    setting = f"feeds.{name}.url"
    try:
        parsed = make_url(url)
        scheme = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:
        rule = "it must be a URL such as mysql://user@host/database or sqlite:////path/of/the.db"
        raise ConfigurationError(setting=setting, value=redacted(url), rule=rule) from error
    if scheme not in SOURCES:
        rule = "feeds are in PostgreSQL, MySQL, MariaDB or SQLite"
        raise ConfigurationError(setting=setting, value=redacted(url), rule=rule)
    module, _, kind = SOURCES[scheme].partition(":")
    source: Source = getattr(import_module(module), kind)(name, parsed, schema, timeout)
    return source
