"""Which feeds there are, and their sources."""

from __future__ import annotations

import logging
import time

import psycopg

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ConfigurationError, DatabaseUnavailable, SchemaMissing
from outbox_tasks.feeds.place import LIST, FeedPlace
from outbox_tasks.feeds.source import Source, open_source
from outbox_tasks.text import short

log = logging.getLogger("outbox_tasks.bridge")

WRONG_QUERY = "42"
"""The class of SQLSTATE of errors in a query: no such table or column, no right, or its syntax."""


class FeedList:
    """The feeds of a process. It keeps one connection open, that of the last one: so a server has no more connections
    of the relay than there are processes for feeds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._places: dict[str, FeedPlace] = {}
        self._found: dict[str, FeedPlace] = {}
        self._read_at = float("-inf")
        self._open: tuple[str, FeedPlace, Source] | None = None

    def places(self) -> dict[str, FeedPlace]:
        """Where each feed is, by name: those of the settings, and those that the query finds."""
        if time.monotonic() >= self._read_at + 10.0:
            try:
                self._found = self.listed()
            except ConfigurationError as error:
                log.error("%s", error)  # those of the settings go on, and those that were found before
            own = {name: one for name, one in self._database.settings.feeds.items() if isinstance(one, FeedPlace)}
            self._places = {**self._found, **own}
            self._read_at = time.monotonic()
        return self._places

    def source(self, name: str) -> Source | None:
        """The source of a feed; None if there is no such feed. Raises `ConfigurationError`."""
        place = self.places().get(name)
        if place is None:
            return None
        if self._open is not None and self._open[:2] == (name, place):
            return self._open[2]
        self.close()
        source = open_source(name, place.url, place.url_schema, timeout=5.0)
        self._open = (name, place, source)
        return source

    def close(self) -> None:
        """Close the connection to the last source."""
        kept, self._open = self._open, None
        if kept is not None:
            kept[2].close()

    def listed(self) -> dict[str, FeedPlace]:
        """What the query for feeds finds now. Raises `ConfigurationError` if it is wrong, or `DatabaseUnavailable`."""
        if (query := self._database.settings.feeds.get(LIST)) is None:
            return {}
        try:
            # Each URL is checked when its source is opened: a wrong one must not stop the others.
            rows = self._database.query(str(query))
            return {str(name): FeedPlace.model_construct(url=str(url), url_schema=schema) for name, url, schema in rows}
        except (psycopg.Error, SchemaMissing, DatabaseUnavailable, ValueError) as error:
            cause = error if isinstance(error, ValueError | psycopg.Error) else error.__cause__
            state = getattr(cause, "sqlstate", None) or ""
            if isinstance(error, DatabaseUnavailable) and not state.startswith(WRONG_QUERY):
                raise
            rule = f"it must be a query for name, url and schema: {short(str(cause))}"
            raise ConfigurationError(setting="feeds.list", value="…", rule=rule) from error
