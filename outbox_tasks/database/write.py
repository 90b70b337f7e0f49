"""The statements that insert messages, and that cancel them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import (
    ARRAY,
    Boolean,
    DateTime,
    Float,
    LargeBinary,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    false,
    func,
    insert,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql import ColumnElement, Insert, Select

from outbox_tasks.database.pieces import PRIORITIES, SECOND, json_rows
from outbox_tasks.database.schema import Tables, function

ROW: dict[str, Any] = {
    "id": Uuid,
    "event_type": Text,
    "aggregate_type": Text,
    "aggregate_id": Text,
    "destination": Text,
    "key": Text,
    "text": Text,
    "data": Text,
    "content_type": Text,
    "headers": JSONB,
    "deliver_at": DateTime(True),
    "delay": Float,
    "priority": Text,
    "latest": Boolean,
    "lease": Uuid,
}
"""A row to write: its payload is `text`, or `data` in base64. It is due at `deliver_at`, or after `delay` seconds."""

RANKS = [(name, rank) for name, rank in PRIORITIES.items() if rank]


def publish(t: Tables, when: ColumnElement[bool] | None = None) -> Insert:
    """Insert messages, `when` this is true. Parameter: row (JSON rows as in `ROW`).

    It is one text parameter, because applications use various drivers, and all of them can pass a text.
    """
    row = json_rows("row", **ROW)
    values = _inserted(dict(row.c.items()))
    rows = select(*values.values()).select_from(row)
    return insert(t.messages).from_select(list(values), rows if when is None else rows.where(when))


def publish_one(t: Tables, names: Collection[str]) -> Insert:
    """Insert one message that has these columns of `ROW`. Parameters: they, but the payload as bytes, as `payload`, and
    the headers as JSON.

    PostgreSQL parses and plans this in half the time of `publish`, and runs it in less. Some drivers make it parse and
    plan a statement each time.
    """
    row = {name: _parameter(name, ROW.get(name, LargeBinary)) for name in names}
    due, delay, priority = (row.pop(name, None) for name in ("deliver_at", "delay", "priority"))
    if due is not None:
        row["locked_until"] = due
    if delay is not None:
        row["locked_until"] = func.clock_timestamp() + delay * SECOND
    if priority is not None:
        row["priority"] = _rank(priority)
    return insert(t.messages).values(row).inline()  # a writer may have no right to read, which RETURNING needs


def publish_once(schema: str | None) -> Select[Any]:
    """Insert messages whose ids the application chose. A message that is there already is not written again.

    Fails with SQLSTATE 23505 if an id belongs to a message with other content.
    """
    row = json_rows("row", **ROW)
    values = _written(dict(row.c.items()))
    values |= {
        "priority": func.coalesce(row.c.priority, "normal"),
        "latest": func.coalesce(row.c.latest, false()),
    }
    names = ["event_type", "payload", "key", "destination", "headers", "locked_until", "id", "content_type",
             "aggregate_type", "aggregate_id", "priority", "latest"]  # fmt: skip
    return select(function(schema, "outbox_publish")(*(values[name] for name in names))).select_from(row)


def cancel(schema: str | None) -> Select[Any]:
    """Cancel messages that are not being sent. Returns a row for each of them. Parameter: ids (array, as text)."""
    ids = cast(bindparam("ids", type_=Text), ARRAY(Uuid))
    return select(function(schema, "outbox_cancel")(ids))


Row = Mapping[str, ColumnElement[Any]]
"""The columns of `ROW`."""


def _inserted(row: Row) -> dict[str, ColumnElement[Any]]:
    return {
        **_written(row),
        "priority": _rank(row["priority"]),
        "latest": func.coalesce(row["latest"], false()),
        "lease": row["lease"],
    }


def _rank(priority: ColumnElement[Any]) -> ColumnElement[Any]:
    return case(
        *((priority == literal_column(f"'{name}'"), literal_column(str(rank))) for name, rank in RANKS),
        else_=literal_column("0"),
    )


def _written(row: Row) -> dict[str, ColumnElement[Any]]:
    same = ("id", "event_type", "aggregate_type", "aggregate_id", "destination", "key", "content_type")
    return {
        **{name: row[name] for name in same},
        "payload": func.coalesce(
            func.convert_to(row["text"], literal_column("'UTF8'")),
            func.decode(row["data"], literal_column("'base64'")),
        ),
        "headers": func.coalesce(row["headers"], cast(literal_column("'{}'"), JSONB)),
        "locked_until": func.coalesce(
            row["deliver_at"], func.clock_timestamp() + func.coalesce(row["delay"], literal_column("0")) * SECOND
        ),
    }


def _parameter(name: str, kind: Any) -> ColumnElement[Any]:
    if kind is Text:
        return bindparam(name, type_=Text)
    return cast(bindparam(name, type_=kind if kind in (Boolean, Float, LargeBinary) else Text), kind)
