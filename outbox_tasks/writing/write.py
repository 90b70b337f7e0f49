"""Hop 1, write: insert messages in the application's own transaction, and nudge the relay after its commit."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
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
from outbox_tasks.writing.transactions import AnySession, Transaction, explain, transaction_of

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
        self._messages = tables(settings.database_schema).messages

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
            transaction = transaction_of(session, all_rows[0]["event_type"])
            transaction.insert(self._messages, self._insert_once if id_was_chosen else self._insert, all_rows)
            self._nudge_after_commit(transaction, {row["destination"] for row in all_rows})
        return ids

    def _nudge_after_commit(self, transaction: Transaction, destinations: set[str]) -> None:
        """Wake what sends to these destinations."""
        if self.nudge is None:
            return
        for name in destinations:
            drains_only = self._settings.singles_of(name) == 0
            transaction.after_commit(self.nudge.of(Woken("drain", name)) if drains_only else self.nudge)

    def cancel(self, session: AnySession, id: UUID) -> bool:
        """Take a message back from all destinations that are not sent it yet; false if there is none."""
        ids = [id, *(sibling(id, name) for name in self._settings.destinations)]
        transaction, cancel = transaction_of(session, "outbox.cancel"), self._verb("write/cancel.sql")
        try:
            taken = transaction.run(cancel, {"ids": f"{{{','.join(map(str, ids))}}}"}, self._messages) > 0
        except Exception as error:
            explain(error, self._settings.database_schema)
            raise
        if taken and self.nudge is not None:  # a message that waited behind it, for their key, may be due
            transaction.after_commit(self.nudge)
        return taken

    def _verb(self, file: str) -> Verb:
        return Verb(file, self._settings.database_schema)

    def _insert(self, connection: AnyConnection, all_rows: list[Row]) -> None:
        """Insert messages whose ids are new."""
        if len(all_rows) == 1 and _is_ascii(all_rows[0]):
            self._execute(connection, "write/publish_one.sql", all_rows, [_parameters(all_rows[0])])
        else:
            self._execute(connection, "write/publish.sql", all_rows, _texts(all_rows))

    def _insert_once(self, connection: AnyConnection, all_rows: list[Row]) -> None:
        """Insert messages some of whose ids the application has chosen, unless they are there."""
        self._execute(connection, "write/publish_once.sql", all_rows, _texts(all_rows))

    def _execute(self, connection: AnyConnection, file: str, all_rows: list[Row], statements: Iterable[Row]) -> None:
        """Execute a verb with each of these parameters."""
        event_type = all_rows[0]["event_type"]
        try:
            for parameters in statements:
                execute(connection, self._verb(file), parameters, event_type)
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


def _texts(all_rows: Iterable[Row]) -> Iterator[Row]:
    """The rows as JSON, in their order: the parameters of each statement."""
    texts: list[str] = []
    size = 0
    for text in map(json.dumps, all_rows):
        if texts and size + len(text) > STATEMENT_CHARACTERS:
            yield {"row": f"[{','.join(texts)}]"}
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    yield {"row": f"[{','.join(texts)}]"}
