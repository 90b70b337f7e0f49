"""Writes messages of any state by hand, each as one wide row: what a test says is put into the table that it means."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ClauseElement, Connection, Row, text
from sqlalchemy.dialects import postgresql

COLUMNS = """
  seq bigint, id uuid DEFAULT {s}.outbox_uuid7(), created_at timestamptz DEFAULT clock_timestamp(),
  deliver_at timestamptz, priority smallint DEFAULT 0, latest boolean DEFAULT false, event_type text,
  destination text, key text,
  aggregate_type text, aggregate_id text, content_type text DEFAULT 'application/json', headers jsonb DEFAULT '{{}}',
  payload bytea, status text DEFAULT 'pending', locked_until timestamptz DEFAULT clock_timestamp(), lease uuid,
  begun boolean DEFAULT false, dead_at timestamptz, attempts integer DEFAULT 0, outages integer DEFAULT 0,
  spared integer DEFAULT 0,
  last_error_code text, last_error text, history jsonb, locked_by text, handed_at timestamptz"""
NAMES = [part.split()[0] for part in COLUMNS.replace("{s}", "").replace("\n", " ").split(", ")]
JSON = {"headers", "history"}
FACTS = NAMES[: NAMES.index("status")]

READ = """SELECT seq, id, created_at, deliver_at, priority, latest, event_type, destination, key, aggregate_type,
  aggregate_id, content_type, coalesce(headers, '{{}}') AS headers, payload,
  CASE WHEN place = 'dead' THEN 'dead' ELSE 'pending' END AS status, locked_until, lease,
  begun_at IS NOT NULL OR place = 'running' AS begun, dead_at, attempts, spared,
  CASE WHEN unheard > 0 THEN -unheard ELSE outages END AS outages, last_error_code, last_error, history, locked_by,
  handed_at, place FROM {s}.outbox_at_work"""

TAKEN = """
DELETE FROM {s}.outbox_ready r USING wide w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_waiting r USING wide w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_held r USING wide w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_runs r USING wide w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_dead r USING wide w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_trouble r USING wide w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_keys k USING wide w WHERE k.destination = w.destination AND k.key = w.key;
DELETE FROM {s}.outbox_leases l WHERE l.seqs <@ (SELECT array_agg(seq) FROM wide);
UPDATE {s}.outbox_leases l SET seqs = ARRAY(SELECT x FROM unnest(l.seqs) WITH ORDINALITY AS u(x, n)
                                            WHERE x NOT IN (SELECT seq FROM wide) ORDER BY n)
WHERE l.seqs && (SELECT array_agg(seq) FROM wide)"""

PLACED = """
INSERT INTO {s}.outbox_trouble (seq, attempts, spared, outages, code, error, history)
SELECT seq,
       greatest(0, attempts - (status <> 'dead' AND (begun AND lease IS NOT NULL OR handed_at IS NOT NULL))::integer),
       spared, greatest(outages, 0), last_error_code, last_error, coalesce(history, '[]')
FROM wide WHERE attempts > 0 OR outages > 0 OR last_error_code IS NOT NULL OR history IS NOT NULL;
INSERT INTO {s}.outbox_dead (seq, dead_at, kin, destination, key)
SELECT seq, coalesce(dead_at, clock_timestamp()),
       {s}.outbox_error_group(destination, event_type, last_error_code, last_error), destination, key
FROM wide WHERE status = 'dead';
INSERT INTO {s}.outbox_runs
       (seq, state, token, locked_until, handed_at, attempts, unheard, id, destination, key, holder)
SELECT seq, CASE WHEN begun THEN 'running' ELSE 'handed over' END, CASE WHEN begun THEN lease END, locked_until,
       handed_at, attempts, greatest(-outages, 0), id, destination, key, locked_by
FROM wide WHERE status <> 'dead' AND handed_at IS NOT NULL;
INSERT INTO {s}.outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
SELECT CASE WHEN EXISTS (SELECT FROM {s}.outbox_leases l WHERE l.token = w.lease) THEN gen_random_uuid() ELSE lease END,
       max(locked_until), CASE WHEN bool_or(begun) THEN clock_timestamp() END, destination, max(locked_by),
       array_agg(seq ORDER BY seq)
FROM wide w WHERE status <> 'dead' AND handed_at IS NULL AND lease IS NOT NULL GROUP BY lease, destination;
INSERT INTO {s}.outbox_waiting (seq, due, since, attempts, alone, destination)
SELECT seq, locked_until, coalesce(deliver_at, created_at), attempts, ALONE, destination
FROM wide WHERE AT_REST AND key IS NULL AND locked_until > clock_timestamp();
INSERT INTO {s}.outbox_ready (seq, since, size, attempts, priority, alone, destination, key)
SELECT seq, locked_until, octet_length(payload), attempts, priority, ALONE, destination, key
FROM wide WHERE AT_REST AND CASE WHEN key IS NULL THEN locked_until <= clock_timestamp() ELSE NEW AND attempts = 0 END
ORDER BY seq;
INSERT INTO {s}.outbox_held (seq, since, size, attempts, alone, destination, key)
SELECT seq, locked_until, octet_length(payload), attempts, ALONE, destination, key
FROM wide WHERE AT_REST AND key IS NOT NULL AND NOT (NEW AND attempts = 0)""".replace(
    "ALONE", "coalesce(last_error_code IN ('unsettled', 'failed_together', 'failed_alone'), false)"
).replace("AT_REST", "status <> 'dead' AND handed_at IS NULL AND lease IS NULL")

KEYS = """
WITH passed AS (  -- a key's new messages are the last ones
  DELETE FROM {s}.outbox_ready r WHERE r.key IS NOT NULL AND EXISTS (
    SELECT FROM {s}.outbox_at_work a
    WHERE a.destination = r.destination AND a.key = r.key AND a.seq > r.seq AND a.place <> 'ready')
  RETURNING r.*
)
INSERT INTO {s}.outbox_held (destination, key, seq, since, size) SELECT destination, key, seq, since, size FROM passed;
INSERT INTO {s}.outbox_keys (destination, key, token, due, more)
SELECT k.destination, k.key, owner.token,
       CASE WHEN owner.token IS NOT NULL OR dead.seq < coalesce(head.seq, dead.seq + 1) THEN 'infinity'
            ELSE coalesce(head.since, now()) END, true
FROM (SELECT DISTINCT destination, key FROM wide WHERE key IS NOT NULL) AS k
CROSS JOIN LATERAL (
  SELECT max(coalesce(a.lease, gen_random_uuid())::text)::uuid AS token FROM {s}.outbox_at_work a
  WHERE a.destination = k.destination AND a.key = k.key AND a.place IN ('leased', 'running', 'handed over')) AS owner
LEFT JOIN LATERAL (SELECT h.seq, h.since FROM {s}.outbox_held h
                   WHERE h.destination = k.destination AND h.key = k.key ORDER BY h.seq LIMIT 1) AS head ON true
LEFT JOIN LATERAL (SELECT d.seq FROM {s}.outbox_dead d
                   WHERE d.destination = k.destination AND d.key = k.key ORDER BY d.seq LIMIT 1) AS dead ON true
WHERE owner.token IS NOT NULL OR head.seq IS NOT NULL OR dead.seq IS NOT NULL
ON CONFLICT (destination, key) DO UPDATE SET token = excluded.token, due = excluded.due, more = true, first = 0"""
"""The rows of the busy keys among the messages."""


def insert(connection: Connection, schema: str, count: int, columns: dict[str, Any]) -> list[str]:
    """Write `count` messages with these columns (values or SQL). Returns their ids."""
    run = _runner(connection, schema)
    run(f"CREATE TEMP TABLE wide ({COLUMNS}) ON COMMIT DROP")
    # What is due later was published so.
    names, values = [*columns], _values(columns)
    said = ", ".join(_said(name, columns[name]) for name in names)
    connection.execute(
        text(f"INSERT INTO wide ({', '.join(names)}) SELECT {said} FROM generate_series(1, {count})"), values
    )
    run("UPDATE wide SET seq = nextval('{s}.outbox_seq') WHERE seq IS NULL")
    run(
        "UPDATE wide SET deliver_at = locked_until WHERE deliver_at IS NULL AND lease IS NULL AND handed_at IS NULL "
        "AND status = 'pending' AND attempts = 0 AND locked_until > clock_timestamp()"
    )
    facts = ", ".join(FACTS)
    run(f"INSERT INTO {{s}}.outbox_messages ({facts}) SELECT {facts} FROM wide ORDER BY seq")
    run(PLACED.replace("NEW", "true"))
    run(KEYS)
    return [str(id) for id in connection.scalars(text("SELECT id FROM wide ORDER BY seq"))]


def change(connection: Connection, schema: str, ids: Sequence[str] | None, columns: dict[str, Any]) -> None:
    """Change these messages, or all that are at work."""
    run = _runner(connection, schema)
    run(f"CREATE TEMP TABLE wide ({COLUMNS}) ON COMMIT DROP")
    which = "" if ids is None else " WHERE id = ANY (:ids)"
    read = READ.format(s=schema)
    names = ", ".join(NAMES)
    connection.execute(
        text(f"INSERT INTO wide ({names}) SELECT {names} FROM ({read}) AS found{which}"),
        {} if ids is None else {"ids": [UUID(str(id)) for id in ids]},
    )
    run(TAKEN)
    values = _values(columns)
    said = ", ".join(f"{name} = {_said(name, value)}" for name, value in columns.items())
    connection.execute(text(f"UPDATE wide SET {said}"), values)
    changed = ", ".join(f"{name} = wide.{name}" for name in FACTS if name != "seq")
    run(f"UPDATE {{s}}.outbox_messages m SET {changed} FROM wide WHERE m.seq = wide.seq")
    run(PLACED.replace("NEW", "false"))
    run(KEYS)


def settle(connection: Connection, schema: str, id: str, state: str) -> None:
    """Take a message from where it is at work into the journal. Its history stays."""
    run = _runner(connection, schema)
    run(f"CREATE TEMP TABLE wide ON COMMIT DROP AS SELECT * FROM ({READ}) AS found WHERE id = '{id}'")
    run(TAKEN.replace("DELETE FROM {s}.outbox_trouble r USING wide w WHERE r.seq = w.seq;\n", ""))
    run(
        "INSERT INTO {s}.outbox_journal (first, state, count, destination, holder, seqs) "
        f"SELECT seq, '{state}', 1, destination, locked_by, int8multirange(int8range(seq, seq, '[]')) FROM wide"
    )
    run(KEYS)


def clear(connection: Connection, schema: str) -> None:
    """Remove all messages."""
    names = "messages", "ready", "waiting", "held", "keys", "leases", "drains", "runs", "dead", "journal", "trouble"
    connection.execute(text(f"TRUNCATE {', '.join(f'{schema}.outbox_{name}' for name in names)}"))


def clear_work(connection: Connection, schema: str) -> None:
    """Remove what is at work."""
    run = _runner(connection, schema)
    run(f"CREATE TEMP TABLE wide ON COMMIT DROP AS {READ}")
    run(TAKEN)
    run("DELETE FROM {s}.outbox_messages m USING wide w WHERE m.seq = w.seq")


def read(connection: Connection, schema: str) -> list[Row[Any]]:
    """All messages at work, in the order of insertion."""
    return list(connection.execute(text(READ.format(s=schema) + " ORDER BY seq")).all())


def _values(columns: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in columns.items() if not isinstance(value, ClauseElement)}
    return {n: json.dumps(value) if n in JSON and value is not None else value for n, value in given.items()}


def _said(name: str, value: Any) -> str:
    if isinstance(value, ClauseElement):
        compiled = value.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})  # type: ignore[no-untyped-call]
        return re.sub(r"(?<!:):(?=\w)", r"\\:", str(compiled))  # for text()
    return f"CAST(:{name} AS {_kind(name)})"


def _kind(name: str) -> str:
    """The type of a column."""
    return next(part.split()[1] for part in COLUMNS.replace("\n", " ").split(", ") if part.split()[0] == name)


def _runner(connection: Connection, schema: str) -> Any:
    def run(script: str) -> None:
        for statement in script.split(";\n"):
            connection.exec_driver_sql(statement.format(s=schema), execution_options={"no_parameters": True})

    return run
