"""Hop 1, write: insert messages in the application's own transaction, and nudge the claim once it has committed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID, uuid5
from weakref import WeakKeyDictionary

from celery import Celery
from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, event, func
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session, scoped_session

from outbox_tasks import statements
from outbox_tasks.errors import (
    InvalidMessage,
    NotInTransaction,
    PayloadNotSerializable,
    PayloadTooLarge,
    SchemaMissing,
    UnsupportedSession,
)
from outbox_tasks.model import MAX_EVENT_TYPE, MAX_KEY, MAX_TEXT, Message, uuid7
from outbox_tasks.nudge import Nudge, broker_nudge
from outbox_tasks.schema import LOST_TABLE, tables
from outbox_tasks.settings import Settings

JSON, TEXT, BYTES = "application/json", "text/plain; charset=utf-8", "application/octet-stream"

LONGEST_DELAY = timedelta(days=3653)

Row = dict[str, Any]


class Outbox:
    """Publishes messages inside the application's transactions.

    `settings` default to those of the environment and `outbox.toml`; `celery` is the app through whose broker the
    relay is nudged, by default that of the settings. Make one and keep it: it is cheap to use and thread-safe.
    """

    def __init__(self, settings: Settings | None = None, *, celery: Celery | None = None) -> None:
        self.settings = settings or Settings()
        self._insert = statements.publish(tables(self.settings.database_schema))
        self._nudge = broker_nudge(self.settings, celery)

    def publish(
        self,
        session: Session | scoped_session[Session] | Connection,
        event_type: str,
        payload: Any,
        *,
        key: str | None = None,
        to: str | Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
        delay: float | timedelta | None = None,
        id: UUID | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        content_type: str | None = None,
    ) -> UUID:
        """Insert a message into the session's transaction; it is delivered if and only if that commits.

        `event_type` says what happened, in up to 255 characters. `payload` is stored as JSON, unless it is str or
        bytes, which are stored as they are (as `content_type`, by default plain text or octets). `to` names
        destinations; without it the routes do. `key` says which messages belong together, and travels along; the
        relay does not keep their order yet. `headers` travel along as text. `deliver_at` (aware) or `delay` (seconds)
        keep it back until then. `id` makes it yours to choose.

        Returns the message's id, by which consumers recognise a repeated delivery. When it goes to several
        destinations, this is the id at the first; at the others it is derived from it and their name.
        Raises `NotInTransaction`, or a `MessageRefused` before anything is written.
        """
        message = Message(
            event_type, payload, key, to, headers, deliver_at, delay, id, aggregate_type, aggregate_id, content_type
        )
        return self.publish_many(session, [message])[0]

    def publish_many(
        self, session: Session | scoped_session[Session] | Connection, messages: Iterable[Message]
    ) -> list[UUID]:
        """Insert several messages in one go; all are checked before the first is written. Returns their ids."""
        ids, rows = [], []
        for message in messages:
            made = list(self._rows(message))
            ids.append(made[0]["id"])
            rows.extend(made)
        if not rows:
            return []
        connection = _connection(session, rows[0]["event_type"])
        try:
            self._execute(connection, rows)
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) in LOST_TABLE:
                raise SchemaMissing(schema=self.settings.database_schema or "of the search_path") from error
            raise
        if self._nudge is not None:
            _wake_after_commit(session, self._nudge)
        return ids

    def _execute(self, connection: Connection, rows: list[Row]) -> None:
        at_once = [row for row in rows if "locked_until" not in row]
        if at_once:
            connection.execute(self._insert, at_once if len(at_once) > 1 else at_once[0])
        for row in rows:
            if "locked_until" in row:  # may be an expression, and so a statement of its own
                connection.execute(self._insert.values(row))

    def _rows(self, message: Message) -> Iterator[Row]:
        """The checked rows of a message, one for each destination."""
        event_type = message.event_type
        _check(message)
        to = message.to
        names = [to] if isinstance(to, str) else list(to) if to is not None else self.settings.routed(event_type)
        if not names:
            raise InvalidMessage(event_type=event_type, field="to", value=names, rule="names no destination")
        payload, content_type = _serialized(message)
        due = _due(message)
        first = message.id or uuid7()
        for position, name in enumerate(names):
            destination = self.settings.destination(name, event_type)
            if len(payload) > destination.max_bytes:
                raise PayloadTooLarge(
                    event_type=event_type, size=len(payload), destination=name, limit=destination.max_bytes
                )
            yield {
                "id": first if position == 0 else uuid5(first, name),
                "event_type": event_type,
                "destination": name,
                "key": message.key,
                "payload": payload,
                "content_type": content_type,
                "headers": dict(message.headers or {}),
                "aggregate_type": message.aggregate_type,
                "aggregate_id": message.aggregate_id,
                **({"locked_until": due} if due is not None else {}),
            }


def _serialized(message: Message) -> tuple[bytes, str]:
    payload = message.payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), message.content_type or BYTES
    try:
        if isinstance(payload, str):
            return payload.encode(), message.content_type or TEXT
        if dataclasses.is_dataclass(payload):
            payload = to_jsonable_python(payload)
        text = json.dumps(
            payload, default=to_jsonable_python, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
        return text.encode(), message.content_type or JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadNotSerializable(event_type=message.event_type, reason=error) from error


def _due(message: Message) -> Any:
    """When the message is due, as a value or an SQL expression; None: at once."""
    at: object = message.deliver_at
    delay = message.delay
    if at is not None:
        if delay is not None:
            _refuse(message, "delay", delay, "can't be combined with deliver_at")
        if not isinstance(at, datetime) or at.tzinfo is None:
            _refuse(message, "deliver_at", at, "has no time zone: pass a datetime with one, such as datetime.now(UTC)")
        return at
    if delay is None:
        return None
    try:
        delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except (TypeError, ValueError, OverflowError):
        _refuse(message, "delay", delay, "must be a number of seconds or a timedelta")
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        _refuse(message, "delay", message.delay, "lies in the past, or more than ten years ahead")
    return func.clock_timestamp() + delay


def _check(message: Message) -> None:
    """Refuse what the database, or every publisher, would refuse later."""
    _check_text(message, "event_type", message.event_type, MAX_EVENT_TYPE, at_least=1)
    _check_text(message, "key", message.key, MAX_KEY)
    _check_text(message, "aggregate_type", message.aggregate_type, MAX_TEXT)
    _check_text(message, "aggregate_id", message.aggregate_id, MAX_TEXT)
    _check_text(message, "content_type", message.content_type, MAX_TEXT)
    if message.id is not None and not isinstance(message.id, UUID):
        _refuse(message, "id", message.id, "must be a UUID")
    if not message.headers:
        return
    headers: object = message.headers
    if not isinstance(headers, Mapping):
        _refuse(message, "headers", headers, "must be a mapping of text to text")
    else:
        for name, value in headers.items():
            if not _is_text(name) or not _is_text(value):
                _refuse(message, f"headers[{name!r}]", value, "must be text under a name that is text")


def _check_text(message: Message, field: str, value: object, at_most: int, *, at_least: int = 0) -> None:
    if value is None and not at_least:
        return
    if not _is_text(value) or not at_least <= len(str(value)) <= at_most:
        _refuse(message, field, value, f"must be text of {at_least} to {at_most} characters, without NUL")


def _is_text(value: object) -> bool:
    """Whether PostgreSQL can store it as text: no NUL, and no half of a surrogate pair."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(message: Message, field: str, value: object, rule: str) -> NoReturn:
    raise InvalidMessage(event_type=_short(message.event_type), field=field, value=_short(value), rule=rule)


def _short(value: object) -> object:
    return value[:40] + "…" if isinstance(value, str) and len(value) > 40 else value


def _connection(session: object, event_type: str) -> Connection:
    """The connection of the session's transaction."""
    if isinstance(session, scoped_session):
        session = session()
    if not isinstance(session, Session | Connection):
        raise UnsupportedSession(kind=f"{type(session).__module__}.{type(session).__qualname__}")
    if not session.in_transaction():
        raise NotInTransaction(event_type=event_type)
    connection = session.connection() if isinstance(session, Session) else session
    statements.check_dialect(connection.dialect.name)
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise NotInTransaction(event_type=event_type)  # begun in name only: each statement commits by itself
    return connection


WAKE = "outbox_tasks.wake"
"""Where a session keeps the nudge that its next commit owes."""

_owing: WeakKeyDictionary[Connection, Nudge | None] = WeakKeyDictionary()
"""The Core connections that have published, each with the nudge that its next commit owes."""


def _wake_after_commit(session: Any, nudge: Nudge) -> None:
    if isinstance(session, Connection):
        if session not in _owing:
            event.listen(session, "commit", _connection_commits)
            event.listen(session, "rollback", _connection_rolled_back)
        _owing[session] = nudge
    else:
        session.info[WAKE] = nudge


@event.listens_for(Session, "after_commit")
def _session_committed(session: Session) -> None:
    if WAKE in session.info and session.get_nested_transaction() is None:
        session.info.pop(WAKE)()


@event.listens_for(Session, "after_rollback")
def _session_rolled_back(session: Session) -> None:
    if session.get_nested_transaction() is None:
        session.info.pop(WAKE, None)


def _connection_commits(connection: Connection) -> None:
    # SQLAlchemy tells of a connection's commit just before it: the nudge has to wait for its end.
    nudge, _owing[connection] = _owing.get(connection), None
    if nudge is not None:
        transaction = connection.get_transaction()
        nudge(lambda: transaction is None or not transaction.is_active)


def _connection_rolled_back(connection: Connection) -> None:
    _owing[connection] = None
