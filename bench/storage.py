"""Messages by SQL, as many as a bench needs, and their end."""

from __future__ import annotations

from sqlalchemy import Connection, text

LOT = 1_000
"""Messages that one call of outbox_write takes."""

PLACES = """SELECT string_agg(format('%I', relname), ', ') FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND relname = ANY (
  ARRAY['outbox_messages', 'outbox_ready', 'outbox_waiting', 'outbox_held', 'outbox_freed', 'outbox_keys',
        'outbox_leases', 'outbox_drains', 'outbox_runs', 'outbox_dead', 'outbox_journal', 'outbox_trouble'])"""
"""The tables that messages leave something in; which there are depends on the release."""

USUAL = {
    "id": "outbox_uuid7()",
    "event_type": "'order.created'",
    "destination": "'bench'",
    "content_type": "'application/json'",
    "text": """'{"id": ' || n || ', "note": "' || repeat('x', 150) || '"}'""",
}


def write(connection: Connection, count: int, **columns: str) -> None:
    """Write so many messages. Columns: those of outbox_write, as SQL over their numbers `n`, from 1."""
    named = ", ".join(f"{value} AS {name}" for name, value in {**USUAL, **columns}.items())
    statement = f"""SELECT outbox_write((
      SELECT json_agg(r) FROM (SELECT {named} FROM generate_series(lot + 1, least(lot + {LOT}, :count)) AS n) AS r))
    FROM generate_series(0, :count - 1, {LOT}) AS lot"""
    connection.execute(text(statement), {"count": count})


def clear(connection: Connection) -> None:
    """Remove all messages."""
    connection.execute(text(f"TRUNCATE {connection.scalar(text(PLACES))}"))
