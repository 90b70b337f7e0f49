"""Writes messages into a feed: a table of the application's own database, from which the relay copies them.

A row is what `rows` makes for the relay's own tables. So everything that can be refused is refused here too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from uuid import UUID

from sqlalchemy import Column, MetaData, Table, Text
from sqlalchemy.sql import quoted_name

from outbox_tasks.database.schema import where
from outbox_tasks.errors import FeedCantCancel, FeedMissing, InvalidMessage, RightsMissing
from outbox_tasks.feeds.place import place_of, with_routes_of
from outbox_tasks.model import Message
from outbox_tasks.settings import Settings
from outbox_tasks.text import short
from outbox_tasks.wire import tracing
from outbox_tasks.writing.execution import AnyConnection, Verb, execute, execute_each
from outbox_tasks.writing.nudge import Nudge, Woken
from outbox_tasks.writing.rows import Row, rows
from outbox_tasks.writing.transactions import AnySession, transaction_of, trouble

TABLE = "outbox_feed"

Feed = Callable[[], str] | str
"""A feed's name, or a function that gives the name at each write."""


class FeedWriter:
    """Writes messages into a feed, in transactions of the application."""

    def __init__(self, settings: Settings, feed: Feed, nudge: Nudge | None) -> None:
        self._settings = settings
        self._feed = feed
        self.nudge = nudge

    def write(self, session: AnySession, messages: Iterable[Message]) -> list[UUID]:
        """Check all messages, then insert them. Returns their ids."""
        ids: list[UUID] = []
        table_rows: list[Row] = []
        trace = tracing.current()
        name, settings = "", self._settings
        for message in messages:
            _refuse_chosen_id(message)
            if not name:
                name = self._name()
                settings = with_routes_of(settings, name)
            id, own = rows(message, settings, trace)
            ids.append(id)
            table_rows.extend(own)
        if table_rows:
            transaction = transaction_of(session, table_rows[0]["event_type"])
            place = _place(self._schema(name))
            transaction.insert(place.table, place.insert, table_rows)
            if self.nudge is not None:
                transaction.after_commit(self.nudge.of(Woken("feed", name)))
        return ids

    def cancel(self, session: AnySession, id: UUID) -> bool:
        """Refused: the relay may have read the row already, so nobody could promise that it is not sent."""
        raise FeedCantCancel(id=str(id), feed=self._name())

    def _name(self) -> str:
        return self._feed if isinstance(self._feed, str) else self._feed()

    def _schema(self, name: str) -> str | None:
        """The relay's settings may say where the table is. They don't know each feed of a list."""
        place = place_of(self._settings, name)
        return place.url_schema if place is not None else None


class _Place:
    """The table of feeds in a schema; None: the one that the connection finds."""

    def __init__(self, schema: str | None) -> None:
        self._schema = schema
        self._publish = Verb("feeds/postgresql/publish.sql", schema, "publish.sql")
        # A session with several engines chooses that of this table.
        metadata = MetaData(schema=schema and quoted_name(schema, True))
        self.table = Table(TABLE, metadata, Column("id", Text, primary_key=True))

    def insert(self, connection: AnyConnection, table_rows: list[Row]) -> None:
        event_type = table_rows[0]["event_type"]
        each = [_parameters(row) for row in table_rows]
        try:
            if len(each) == 1:
                execute(connection, self._publish, each[0], event_type)
            else:
                execute_each(connection, self._publish, each, event_type)
        except Exception as error:  # each driver and framework has errors of its own
            kind, reason = trouble(error)
            if kind == "missing":
                raise FeedMissing(table=TABLE, where=where(self._schema)) from error
            if kind == "rights":
                remedy = f"Its owner can allow it: GRANT INSERT (id, ordering_key, message) ON {TABLE} TO …"
                raise RightsMissing(act=f"write to {TABLE}", reason=reason, remedy=remedy) from error
            raise


_place = cache(_Place)


def _refuse_chosen_id(message: Message) -> None:
    if message.id is not None:
        rule = "can't be chosen with a feed, which forgets what is copied: it could not tell a repetition"
        raise InvalidMessage(event_type=short(message.event_type), field="id", value=short(message.id), rule=rule)


def _parameters(row: Row) -> Row:
    """A row of the feed. Its message is ASCII, whatever the connection's encoding is."""
    message = {name: value for name, value in row.items() if name not in ("id", "key")}
    return {"id": row["id"], "key": row.get("key"), "message": json.dumps(message)}
