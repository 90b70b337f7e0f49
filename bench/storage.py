"""Many messages at once, in SQL: written as applications write them, or found as days of work have left them.

`rows` is always a SELECT; `{schema}` stands for the outbox's.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from bench.fresh import execute
from outbox_tasks.settings import Settings

LOT = 1000
"""Messages that one call of outbox_write takes."""

PLACES = ("messages", "ready", "waiting", "held", "freed", "leases", "runs", "dead", "journal", "trouble")

TODAY = 100
"""The number of today in an outbox with a past."""

USUAL = {
    "id": "{schema}.outbox_uuid7()",
    "event_type": "'order.created'",
    "destination": "'bench'",
    "content_type": "'application/json'",
    "text": """'{"id": ' || n || ', "note": "' || repeat('x', 150) || '"}'""",
}

SAID = "id, created_at, event_type, destination, key, headers, payload"

ARCHIVED = (
    f"INSERT INTO {{schema}}.outbox_messages (seq, {SAID}) SELECT seq, {SAID} FROM ({{rows}}) AS r",
    """INSERT INTO {schema}.outbox_journal (first, at, state, count, destination, holder, seqs)
       SELECT min(seq), max(created_at), 'sent', count(*), destination, 'publish1@relay-1:4711',
              range_agg(int8range(seq, seq, '[]'))
       FROM ({rows}) AS r GROUP BY destination, seq >> 32, seq / :bundle""",
)

READY = f"""WITH said AS (
  INSERT INTO {{schema}}.outbox_messages (seq, {SAID})
  SELECT nextval('{{schema}}.outbox_seq'), {SAID} FROM ({{rows}}) AS r
  RETURNING seq, created_at, octet_length(payload) AS size, destination, key
)
INSERT INTO {{schema}}.outbox_ready (seq, since, size, destination, key)
SELECT seq, created_at, size, destination, key FROM said"""

DEAD = f"""WITH made AS MATERIALIZED (
  SELECT nextval('{{schema}}.outbox_seq') AS seq, r.* FROM ({{rows}}) AS r
), said AS (
  INSERT INTO {{schema}}.outbox_messages (seq, {SAID}) SELECT seq, {SAID} FROM made
), noted AS (
  INSERT INTO {{schema}}.outbox_trouble (seq, attempts, code, error, history)
  SELECT seq, attempts, code, error, history FROM made
)
INSERT INTO {{schema}}.outbox_dead (seq, dead_at, kin, destination, key)
SELECT seq, dead_at, {{schema}}.outbox_error_group(destination, event_type, code, error), destination, key FROM made"""


def written(**columns: str) -> str:
    """The statement that writes `:count` messages; columns: of outbox_write, as SQL with their numbers `n`, from 1."""
    said = ", ".join(f"{value} AS {name}" for name, value in {**USUAL, **columns}.items())
    return (
        f"SELECT {{schema}}.outbox_write((SELECT json_agg(r) FROM (SELECT {said} "
        f"FROM generate_series(lot + 1, least(lot + {LOT}, :count)) AS n) AS r)) "
        f"FROM generate_series(0, :count - 1, {LOT}) AS lot"
    )


def write(connection: Connection, count: int, schema: str = "public", **columns: str) -> None:
    """Write so many messages. Nothing is committed yet."""
    connection.execute(text(written(**columns).replace("{schema}", schema)), {"count": count})


def archive(settings: Settings, rows: str, bundle: int, **values: object) -> None:
    """Write what was sent: a SELECT of `seq` and SAID. `bundle`: how many numbers lie in a row of the journal."""
    for statement in ARCHIVED:
        execute(settings, statement.replace("{rows}", rows), bundle=bundle, **values)


def ready(settings: Settings, rows: str, **values: object) -> None:
    """Write what is due, since it was made: a SELECT of SAID."""
    execute(settings, READY.replace("{rows}", rows), **values)


def bury(settings: Settings, rows: str, **values: object) -> None:
    """Write dead letters: a SELECT of SAID, attempts, code, error, history and dead_at."""
    execute(settings, DEAD.replace("{rows}", rows), **values)


def clear(settings: Settings) -> None:
    """Remove all messages."""
    execute(settings, f"TRUNCATE {', '.join(f'{{schema}}.outbox_{name}' for name in PLACES)}")


def make_day(settings: Settings, ago: int) -> int:
    """Make the day that was so many days ago, or make it anew. Returns its number."""
    number = TODAY - ago
    for statement in (
        f"SELECT {{schema}}.outbox_day_make(n) FROM generate_series({TODAY}, {TODAY + 2}) AS n",
        f"""WITH moved AS (UPDATE {{schema}}.outbox_days SET number = {TODAY} WHERE number = 0 RETURNING number)
            SELECT setval('{{schema}}.outbox_seq', number::bigint << 32) FROM moved""",
        f"SELECT {{schema}}.outbox_day_make({number})",
        f"""INSERT INTO {{schema}}.outbox_days (number, date, began_at, ended_at)
            SELECT {number}, day AT TIME ZONE 'UTC', day, day + interval '1 day'
            FROM (SELECT date_trunc('day', now(), 'UTC') - interval '{ago} days' AS day) AS d
            ON CONFLICT (number) DO UPDATE SET gone_at = NULL""",
    ):
        execute(settings, statement)
    return number
