"""Messages in any state, written and read by hand.

A test gives the columns of a message as if there were one table. Each column is put into the table that it belongs to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import ClauseElement, Connection, Engine, MetaData, Row, Table, func, literal, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import ColumnElement, quoted_name

from outbox_tasks.database.schema import quoted

COLUMNS = """
  seq bigint, id uuid DEFAULT {s}.outbox_uuid7(), created_at timestamptz DEFAULT clock_timestamp(),
  deliver_at timestamptz, priority smallint DEFAULT 0, latest boolean DEFAULT false, event_type text,
  destination text, key text,
  aggregate_type text, aggregate_id text, content_type text DEFAULT 'application/json', headers jsonb DEFAULT '{{}}',
  payload bytea, status text DEFAULT 'pending', locked_until timestamptz DEFAULT clock_timestamp(), lease uuid,
  begun boolean DEFAULT false, dead_at timestamptz, attempts integer DEFAULT 0, outages integer DEFAULT 0,
  spared integer DEFAULT 0,
  last_error_code text, last_error text, history jsonb, locked_by text, handed_at timestamptz"""
COLUMN_NAMES = [part.split()[0] for part in COLUMNS.replace("{s}", "").replace("\n", " ").split(", ")]
JSON = {"headers", "history"}
WRITTEN_ONCE = COLUMN_NAMES[: COLUMN_NAMES.index("status")]

READ = """SELECT seq, id, created_at, deliver_at, priority, latest, event_type, destination, key, aggregate_type,
  aggregate_id, content_type, coalesce(headers, '{{}}') AS headers, payload,
  CASE WHEN place = 'dead' THEN 'dead' ELSE 'pending' END AS status, locked_until, lease,
  begun_at IS NOT NULL OR place = 'running' AS begun, dead_at, attempts, spared,
  CASE WHEN unheard > 0 THEN -unheard ELSE outages END AS outages, last_error_code, last_error, history, locked_by,
  handed_at, place FROM {s}.outbox_at_work"""

REMOVE = """
DELETE FROM {s}.outbox_ready r USING given w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_waiting r USING given w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_held r USING given w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_runs r USING given w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_dead r USING given w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_trouble r USING given w WHERE r.seq = w.seq;
DELETE FROM {s}.outbox_keys k USING given w WHERE k.destination = w.destination AND k.key = w.key;
DELETE FROM {s}.outbox_leases l WHERE l.seqs <@ (SELECT array_agg(seq) FROM given);
UPDATE {s}.outbox_leases l SET seqs = ARRAY(SELECT x FROM unnest(l.seqs) WITH ORDINALITY AS u(x, n)
                                            WHERE x NOT IN (SELECT seq FROM given) ORDER BY n)
WHERE l.seqs && (SELECT array_agg(seq) FROM given)"""

INSERT = """
INSERT INTO {s}.outbox_trouble (seq, attempts, spared, outages, code, error, history)
SELECT seq,
       greatest(0, attempts - (status <> 'dead' AND (begun AND lease IS NOT NULL OR handed_at IS NOT NULL))::integer),
       spared, greatest(outages, 0), last_error_code, last_error, coalesce(history, '[]')
FROM given WHERE attempts > 0 OR outages > 0 OR last_error_code IS NOT NULL OR history IS NOT NULL;
INSERT INTO {s}.outbox_dead (seq, dead_at, kin, destination, key)
SELECT seq, coalesce(dead_at, clock_timestamp()),
       {s}.outbox_error_group(destination, event_type, last_error_code, last_error), destination, key
FROM given WHERE status = 'dead';
INSERT INTO {s}.outbox_runs
       (seq, state, token, locked_until, handed_at, attempts, unheard, id, destination, key, holder)
SELECT seq, CASE WHEN begun THEN 'running' ELSE 'handed over' END, CASE WHEN begun THEN lease END, locked_until,
       handed_at, attempts, greatest(-outages, 0), id, destination, key, locked_by
FROM given WHERE status <> 'dead' AND handed_at IS NOT NULL;
INSERT INTO {s}.outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
SELECT CASE WHEN EXISTS (SELECT FROM {s}.outbox_leases l WHERE l.token = w.lease) THEN gen_random_uuid() ELSE lease END,
       max(locked_until), CASE WHEN bool_or(begun) THEN clock_timestamp() END, destination, max(locked_by),
       array_agg(seq ORDER BY seq)
FROM given w WHERE status <> 'dead' AND handed_at IS NULL AND lease IS NOT NULL GROUP BY lease, destination;
INSERT INTO {s}.outbox_waiting (seq, due, since, attempts, alone, destination)
SELECT seq, locked_until, coalesce(deliver_at, created_at), attempts, ALONE, destination
FROM given WHERE AT_REST AND key IS NULL AND locked_until > clock_timestamp();
INSERT INTO {s}.outbox_ready (seq, since, size, attempts, priority, alone, destination, key)
SELECT seq, locked_until, octet_length(payload), attempts, priority, ALONE, destination, key
FROM given WHERE AT_REST AND CASE WHEN key IS NULL THEN locked_until <= clock_timestamp() ELSE NEW AND attempts = 0 END
ORDER BY seq;
INSERT INTO {s}.outbox_held (seq, since, size, attempts, alone, destination, key)
SELECT seq, locked_until, octet_length(payload), attempts, ALONE, destination, key
FROM given WHERE AT_REST AND key IS NOT NULL AND NOT (NEW AND attempts = 0)""".replace(
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
FROM (SELECT DISTINCT destination, key FROM given WHERE key IS NOT NULL) AS k
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


NAMES = {"messages": "outbox_at_work"}
"""Where an attribute is not the name of its table without `outbox_`."""


class Tables:
    """Those in one schema: `tables.audit` is `outbox_audit`, `tables.messages` the view of messages at work."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self._engine, self._schema = engine, schema

    def __getattr__(self, name: str) -> Table:
        if name.startswith("_"):
            raise AttributeError(name)
        schema = self._schema and quoted_name(self._schema, True)
        return _table(self._engine, NAMES.get(name, f"outbox_{name}"), schema)


_columns: dict[str, Table] = {}
"""Each table as it was first read: all schemas have the same."""


@cache
def _table(engine: Engine, name: str, schema: str | None) -> Table:
    if name not in _columns:
        _columns[name] = Table(name, MetaData(), schema=schema, autoload_with=engine, resolve_fks=False)
    return _columns[name].to_metadata(MetaData(), schema=schema)


def insert(connection: Connection, schema: str, count: int, columns: dict[str, Any]) -> list[str]:
    """Write `count` messages with these columns (values or SQL). Returns their ids."""
    run = _runner(connection, schema)
    run(f"CREATE TEMP TABLE given ({COLUMNS}) ON COMMIT DROP")
    # What is due later was published so.
    names, values = [*columns], _values(columns)
    assigned = ", ".join(_as_sql(name, columns[name]) for name in names)
    connection.execute(
        text(f"INSERT INTO given ({', '.join(names)}) SELECT {assigned} FROM generate_series(1, {count})"), values
    )
    run("UPDATE given SET seq = nextval('{s}.outbox_seq') WHERE seq IS NULL")
    run(
        "UPDATE given SET deliver_at = locked_until WHERE deliver_at IS NULL AND lease IS NULL AND handed_at IS NULL "
        "AND status = 'pending' AND attempts = 0 AND locked_until > clock_timestamp()"
    )
    facts = ", ".join(WRITTEN_ONCE)
    run(f"INSERT INTO {{s}}.outbox_messages ({facts}) SELECT {facts} FROM given ORDER BY seq")
    run(INSERT.replace("NEW", "true"))
    run(KEYS)
    return [str(id) for id in connection.scalars(text("SELECT id FROM given ORDER BY seq"))]


def seconds_from_now(seconds: float) -> ColumnElement[Any]:
    """A time by the database's clock, for a column."""
    # Some statements have it as text, and an older SQLAlchemy can't write a timedelta as one.
    return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)


class Rows:
    """The messages of a test's outbox."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self.engine = engine
        self.tables = Tables(engine, schema)
        self._schema = quoted(schema or "public")

    def insert(self, count: int = 1, **columns: Any) -> list[str]:
        """Commit `count` messages, due since a second ago, with these columns (values or SQL). Returns ids."""
        due = {
            "event_type": "order.created",
            "destination": "orders",
            "payload": b"{}",
            "locked_until": seconds_from_now(-1),
        }
        with self.engine.begin() as connection:
            return insert(connection, self._schema, count, due | columns)

    def change(self, ids: Sequence[str] | None = None, /, **columns: Any) -> None:
        """Change these messages, or all that are at work."""
        which = "" if ids is None else " WHERE id = ANY (:ids)"
        names = ", ".join(COLUMN_NAMES)
        query = f"INSERT INTO given ({names}) SELECT {names} FROM ({READ.format(s=self._schema)}) AS at_work{which}"
        assigned = ", ".join(f"{name} = {_as_sql(name, value)}" for name, value in columns.items())
        changed = ", ".join(f"{name} = given.{name}" for name in WRITTEN_ONCE if name != "seq")
        with self.engine.begin() as connection:
            run = _runner(connection, self._schema)
            run(f"CREATE TEMP TABLE given ({COLUMNS}) ON COMMIT DROP")
            connection.execute(text(query), {} if ids is None else {"ids": [UUID(str(id)) for id in ids]})
            run(REMOVE)
            connection.execute(text(f"UPDATE given SET {assigned}"), _values(columns))
            run(f"UPDATE {{s}}.outbox_messages m SET {changed} FROM given WHERE m.seq = given.seq")
            run(INSERT.replace("NEW", "false"))
            run(KEYS)

    def settle(self, id: str, state: str = "sent") -> None:
        """Note in the journal that a message was sent or discarded. Its history stays."""
        with self.engine.begin() as connection:
            run = _runner(connection, self._schema)
            run(f"CREATE TEMP TABLE given ON COMMIT DROP AS SELECT * FROM ({READ}) AS at_work WHERE id = '{id}'")
            run(REMOVE.replace("DELETE FROM {s}.outbox_trouble r USING given w WHERE r.seq = w.seq;\n", ""))
            run(
                "INSERT INTO {s}.outbox_journal (first, state, count, destination, holder, seqs) SELECT seq, "
                f"'{state}', 1, destination, locked_by, int8multirange(int8range(seq, seq, '[]')) FROM given"
            )
            run(KEYS)

    def clear(self) -> None:
        """Remove all messages."""
        names = "messages", "ready", "waiting", "held", "keys", "leases", "drains", "runs", "dead", "journal", "trouble"
        with self.engine.begin() as connection:
            connection.execute(text(f"TRUNCATE {', '.join(f'{self._schema}.outbox_{name}' for name in names)}"))

    def clear_work(self) -> None:
        """Remove the messages that are at work."""
        with self.engine.begin() as connection:
            run = _runner(connection, self._schema)
            run(f"CREATE TEMP TABLE given ON COMMIT DROP AS {READ}")
            run(REMOVE)
            run("DELETE FROM {s}.outbox_messages m USING given w WHERE m.seq = w.seq")

    def hot(self) -> list[Row[Any]]:
        """What is at work, in the order of insertion."""
        return self._read(text(READ.format(s=self._schema) + " ORDER BY seq"))

    def pending(self) -> bool:
        """Whether any is left to be sent."""
        m = self.tables.messages
        return bool(self._read(select(literal(1)).select_from(m).where(m.c.place != "dead").limit(1)))

    def archived(self) -> list[Row[Any]]:
        """The rows of outbox_archive, in the order of insertion."""
        return self._read(select(self.tables.archive).order_by("seq"))

    def shown(self) -> list[Row[Any]]:
        """The rows of the view outbox_all, in the order of insertion."""
        return self._read(text(f"SELECT * FROM {self._schema}.outbox_all ORDER BY seq"))

    def one(self, id: str | UUID) -> Row[Any]:
        """The row of this id that is at work."""
        [row] = [row for row in self.hot() if str(row.id) == str(id)]
        return row

    def state(self, id: str | UUID) -> str:
        """The state that outbox_all shows."""
        [state] = [row.state for row in self.shown() if str(row.id) == str(id)]
        return str(state)

    def _read(self, statement: Any) -> list[Row[Any]]:
        with self.engine.connect() as connection:
            return list(connection.execute(statement).all())


def _values(columns: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in columns.items() if not isinstance(value, ClauseElement)}
    return {n: json.dumps(value) if n in JSON and value is not None else value for n, value in plain.items()}


def _as_sql(name: str, value: Any) -> str:
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
