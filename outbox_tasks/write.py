"""Hop 1, write: insert messages in the application's own transaction, and nudge the claim once it has committed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5
from weakref import WeakKeyDictionary

from celery import Celery
from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, event, func
from sqlalchemy.orm import Session, scoped_session

from outbox_tasks import statements
from outbox_tasks.errors import (
    InvalidMessage,
    NotInTransaction,
    PayloadNotSerializable,
    PayloadTooLarge,
    UnsupportedSession,
)
from outbox_tasks.model import MAX_EVENT_TYPE, MAX_KEY, Message, uuid7
from outbox_tasks.nudge import Nudge, broker_nudge
from outbox_tasks.schema import tables
from outbox_tasks.settings import Settings

JSON, TEXT, BYTES = "application/json", "text/plain; charset=utf-8", "application/octet-stream"

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
        destinations; without it the routes do. `key` groups messages whose order matters. `headers` travel
        along as text. `deliver_at` (aware) or `delay` (seconds) keep it back until then. `id` makes it yours to choose.

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
        at_once = [row for row in rows if "locked_until" not in row]
        if at_once:
            connection.execute(self._insert, at_once if len(at_once) > 1 else at_once[0])
        for row in rows:
            if "locked_until" in row:
                values = {name: value for name, value in row.items() if name != "locked_until"}
                connection.execute(self._insert.values(locked_until=row["locked_until"], **values))
        if self._nudge is not None:
            _wake_after_commit(session, self._nudge)
        return ids

    def _rows(self, message: Message) -> Iterator[Row]:
        """The checked rows of a message, one for each destination."""
        event_type = message.event_type
        _check_text(event_type, "event_type", event_type, MAX_EVENT_TYPE, at_least=1)
        _check_text(event_type, "key", message.key, MAX_KEY)
        _check_headers(message)
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
    if message.deliver_at is not None and message.delay is not None:
        _refuse(message, "delay", message.delay, "can't be combined with deliver_at")
    if message.deliver_at is not None:
        if message.deliver_at.tzinfo is None:
            _refuse(message, "deliver_at", message.deliver_at, "has no time zone; give it one, such as datetime.UTC")
        return message.deliver_at
    if message.delay is None:
        return None
    delay = message.delay if isinstance(message.delay, timedelta) else timedelta(seconds=message.delay)
    if delay < timedelta(0):
        _refuse(message, "delay", message.delay, "lies in the past")
    return func.clock_timestamp() + delay


def _check_headers(message: Message) -> None:
    headers: Mapping[Any, Any] = message.headers or {}
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            _refuse(message, f"headers[{name!r}]", value, "must be text under a name that is text")


def _check_text(event_type: str, field: str, value: object, at_most: int, *, at_least: int = 0) -> None:
    if value is None and not at_least:
        return
    if not isinstance(value, str) or not at_least <= len(value) <= at_most or "\0" in value:
        shown = value if not isinstance(value, str) or len(value) <= 40 else value[:40] + "…"
        rule = f"must be text of {at_least} to {at_most} characters, without NUL"
        raise InvalidMessage(
            event_type=shown if field == "event_type" else event_type, field=field, value=shown, rule=rule
        )


def _refuse(message: Message, field: str, value: object, rule: str) -> None:
    raise InvalidMessage(event_type=message.event_type, field=field, value=value, rule=rule)


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

_watched: WeakKeyDictionary[Connection, Nudge] = WeakKeyDictionary()
"""Core connections that owe a nudge."""


def _wake_after_commit(session: Any, nudge: Nudge) -> None:
    if isinstance(session, Connection):
        if session not in _watched:
            # SQLAlchemy calls this just before the COMMIT; the nudge takes longer than that, and is best effort.
            event.listen(session, "commit", _connection_commits)
        _watched[session] = nudge
    else:
        session.info[WAKE] = nudge


@event.listens_for(Session, "after_commit")
def _session_committed(session: Session) -> None:
    if WAKE in session.info and session.get_nested_transaction() is None:
        session.info.pop(WAKE)()


def _connection_commits(connection: Connection) -> None:
    _watched[connection]()
