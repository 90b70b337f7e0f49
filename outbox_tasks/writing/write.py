"""Hop 1, write: insert messages in the application's own transaction, and nudge the relay after its commit."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from functools import partial
from uuid import UUID

from outbox_tasks.database import sql
from outbox_tasks.database.schema import tables
from outbox_tasks.errors import ReusedId
from outbox_tasks.model import Message, sibling
from outbox_tasks.settings import Settings
from outbox_tasks.wire import tracing
from outbox_tasks.writing.execution import AnyConnection, Verb, execute
from outbox_tasks.writing.nudge import Nudge, Woken
from outbox_tasks.writing.rows import Row, rows
from outbox_tasks.writing.transactions import AnySession, Transaction, explain, transaction

STATEMENT_CHARACTERS = 16 * 1024 * 1024
"""How long the rows of one statement are, unless a single row is longer. PostgreSQL takes no gigabyte."""

UNIQUE_VIOLATION = "23505"

EMPTY: Row = dict.fromkeys(sql.statement("write/publish_one.sql", None).names)
"""Each parameter of publish_one.sql as null."""

TEXTS = ("event_type", "destination", "key", "aggregate_type", "aggregate_id", "content_type")


class Writer:
    """Writes messages into transactions of the application."""

    def __init__(self, settings: Settings, nudge: Nudge | None) -> None:
        self._settings = settings
        self.nudge = nudge
        schema = settings.database_schema
        self._messages = tables(schema).messages
        self._publish = Verb("write/publish.sql", schema)
        self._publish_one = Verb("write/publish_one.sql", schema)
        self._cancel = Verb("write/cancel.sql", schema)
        self._insert = partial(self._execute, self._publish)
        self._insert_once = partial(self._execute, Verb("write/publish_once.sql", schema))

    def write(self, session: AnySession, messages: Iterable[Message]) -> list[UUID]:
        """Check all messages, then insert them. Returns their ids."""
        ids: list[UUID] = []
        all_rows: list[Row] = []
        id_was_chosen = False
        trace = tracing.current()
        for message in messages:
            id, rows_of_message = rows(message, self._settings, trace)
            ids.append(id)
            all_rows.extend(rows_of_message)
            id_was_chosen = id_was_chosen or message.id is not None
        if all_rows:
            opened = transaction(session, all_rows[0]["event_type"])
            insert = self._insert_once if id_was_chosen else self._insert
            if not opened.defers(self._messages, insert, all_rows):
                insert(opened.connection(self._messages), all_rows)
            self._wake(opened, {row["destination"] for row in all_rows})
        return ids

    def _wake(self, opened: Transaction, destinations: set[str]) -> None:
        """After the commit, wake what sends to these destinations."""
        if self.nudge is None:
            return
        for name in destinations:
            drains_only = self._settings.singles_of(name) == 0
            opened.wake(self.nudge.of(Woken("drain", name)) if drains_only else self.nudge)

    def cancel(self, session: AnySession, id: UUID) -> bool:
        """Take a message back from all destinations that are not sent it yet; false if there is none."""
        ids = [id, *(sibling(id, name) for name in self._settings.destinations)]
        opened = transaction(session, "outbox.cancel")
        try:
            taken = opened.run(self._cancel, {"ids": f"{{{','.join(map(str, ids))}}}"}, self._messages) > 0
        except Exception as error:
            explain(error, self._settings.database_schema)
            raise
        if taken and self.nudge is not None:  # a message that waited behind it, for their key, may be due
            opened.wake(self.nudge)
        return taken

    def _execute(self, verb: Verb, connection: AnyConnection, all_rows: list[Row]) -> None:
        event_type = all_rows[0]["event_type"]
        try:
            if verb is self._publish and len(all_rows) == 1 and _is_ascii(all_rows[0]):
                execute(connection, self._publish_one, _parameters(all_rows[0]), event_type)
                return
            for text in _texts(all_rows):
                execute(connection, verb, {"row": text}, event_type)
        except Exception as error:  # each driver and framework has errors of its own
            state = explain(error, self._settings.database_schema)
            if state == UNIQUE_VIOLATION and (reused := re.search(r"outbox_publish: id ([0-9a-f-]{36})", str(error))):
                raise ReusedId(id=reused[1]) from error
            raise


def _is_ascii(row: Row) -> bool:
    """Whether its texts can be parameters in each client encoding. The payload is bytes then, and JSON is ASCII."""
    return "".join([row.get(name, "") for name in TEXTS]).isascii()


def _parameters(row: Row) -> Row:
    """The parameters of publish_one.sql."""
    parameters = {**EMPTY, **row}
    text = row.get("text")
    parameters["payload"] = b64decode(row["data"]) if text is None else text.encode()
    if "headers" in row:
        parameters["headers"] = json.dumps(row["headers"])
    return parameters


def _texts(all_rows: Iterable[Row]) -> Iterator[str]:
    """The rows as JSON, in their order: one text for each statement."""
    texts: list[str] = []
    size = 0
    for text in map(json.dumps, all_rows):
        if texts and size + len(text) > STATEMENT_CHARACTERS:
            yield f"[{','.join(texts)}]"
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    yield f"[{','.join(texts)}]"
