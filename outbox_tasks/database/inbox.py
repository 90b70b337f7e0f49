"""The statements of the inbox: mark a message as taken, and delete old marks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer, any_, bindparam, delete, func, literal_column, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.sql import Delete, Select
from sqlalchemy.sql.dml import ReturningInsert

from outbox_tasks.database.pieces import seconds
from outbox_tasks.database.schema import Tables


def mark(t: Tables) -> ReturningInsert[Any]:
    """Mark a message as taken by a consumer. Returns one row if this is the first time, and none if not.

    Waits for a transaction that is marking the same message. Parameters: consumer, message.
    """
    marked = postgresql_insert(t.inbox).values(consumer=bindparam("consumer"), message_id=bindparam("message"))
    # Without RETURNING, SQLAlchemy does not keep how many rows an INSERT has made.
    return marked.on_conflict_do_nothing().returning(t.inbox.c.message_id)


def forget(t: Tables) -> Delete:
    """Delete the oldest marks. Parameters: keep (seconds), size (rows at most).

    It deletes rows by their place in the table: no plan can do that wrong, and it costs a sixth of a look-up by key.
    The rows are locked, so they stay in their place."""
    past = t.inbox.alias("past")
    places: Select[Any] = (
        select(literal_column("past.ctid"))
        .select_from(past)
        .where(past.c.received_at < func.now() - seconds("keep"))
        .order_by(past.c.received_at)
        .limit(bindparam("size", type_=Integer))
        .with_for_update(skip_locked=True)
    )
    return delete(t.inbox).where(literal_column("outbox_inbox.ctid") == any_(func.array(places.scalar_subquery())))
