"""Fills the tables of an outbox with as many messages as it may have in earnest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from outbox_tasks.database import sql
from outbox_tasks.database.engine import PLANNING
from tests.storage.conftest import Box

MANY = 500
"""So many rows of a table nobody reads from its beginning."""

MANY_AGAIN = 20_000
"""So many rows of an intermediate result, nobody reads in loops: it would be each row of a batch for each other one."""


def fill(box: Box, sent: int, work: int, *, analyzed: bool = True) -> None:
    """`sent` messages in the journal, and behind them `work` messages at work: most are ready, a tenth is held, and
    some are in each other place. Each hundredth of the sent ones was in trouble. `analyzed`: the server knows so.
    """
    last = sent + work
    for statement in (
        f"""
        INSERT INTO outbox_messages (seq, created_at, event_type, destination, key, payload)
        SELECT n, now() - interval '2 days' + n * interval '1 day' / {last}, 'order.' || (n % 5), 'd' || (n % 4),
               CASE WHEN n % 10 = 0 THEN 'k' || (n % 1000) END, '{{"some": "payload of a usual length, more or less"}}'
        FROM generate_series(1, {last}) AS n
        """,
        f"""
        INSERT INTO outbox_journal (first, at, state, count, destination, holder, seqs)
        SELECT min(n), now() - interval '1 day', CASE WHEN n / 400 % 50 = 0 THEN 'discarded' ELSE 'sent' END, count(*),
               'd' || (n % 4), 'w', range_agg(int8range(n, n, '[]'))
        FROM generate_series(1, {sent}) AS n GROUP BY n / 400, n % 4, n >> 16
        """,
        f"""
        INSERT INTO outbox_ready (seq, since, size, destination, key)
        SELECT n, now() - interval '1 day', 50, 'd' || (n % 4), NULL
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 10 <> 0 AND n % 1000 > 5
        """,
        f"""
        INSERT INTO outbox_held (seq, since, size, destination, key)
        SELECT n, now() - interval '1 day', 50, 'd' || (n % 4), 'k' || (n % 1000)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 10 = 0
        """,
        """
        INSERT INTO outbox_keys (destination, key)
        SELECT DISTINCT destination, key FROM outbox_held
        """,
        f"""
        INSERT INTO outbox_waiting (seq, due, since, attempts, destination)
        SELECT n, now() + interval '1 hour', now(), 1, 'd' || (n % 4)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 = 1
        """,
        f"""
        INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs)
        SELECT gen_random_uuid(), now() + interval '1 hour', now(), 'd2', 'w', array_agg(n ORDER BY n)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 = 2 GROUP BY n / 100000
        """,
        f"""
        INSERT INTO outbox_runs (seq, state, token, locked_until, attempts, id, destination)
        SELECT n, 'running', gen_random_uuid(), now() + interval '1 hour', 1, gen_random_uuid(), 'd' || (n % 4)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 = 3
        """,
        f"""
        INSERT INTO outbox_dead (seq, dead_at, kin, destination)
        SELECT n, now() - interval '1 day' + n * interval '1 millisecond', 'kin' || (n % 7), 'd' || (n % 4)
        FROM generate_series({sent} + 1, {last}) AS n WHERE n % 1000 IN (4, 5)
        """,
        f"""
        INSERT INTO outbox_trouble (seq, attempts, code, error)
        SELECT n, 1, 'http_' || (n % 3), 'refused' FROM generate_series(1, {last}) AS n
        WHERE n % 1000 IN (1, 4, 5) OR n <= {sent} AND n % 100 = 1
        """,
        f"SELECT setval('outbox_seq', {last})",
        "SELECT brin_summarize_new_values('outbox_ready_seq'), brin_summarize_new_values('outbox_held_seq')",
    ):
        box.connection.execute(statement.encode())
    if analyzed:
        names = ("messages", "journal", "ready", "held", "keys", "waiting", "leases", "runs", "dead", "trouble")
        box.connection.execute(f"ANALYZE {', '.join(f'outbox_{name}' for name in names)}".encode())


def fill_days(box: Box, days: int, each: int) -> None:
    """`each` messages for each of the past `days`: half were sent, the others are dead."""
    for day in range(days):
        box.connection.execute(f"SELECT outbox_day_make({day})".encode())
    mine = f"FROM generate_series(0, {days} - 1) AS day, generate_series(1, {each}) AS n"
    seq = "((day::bigint << 32) + n)"
    for statement in (
        f"""INSERT INTO outbox_messages (seq, event_type, destination, key, payload)
        SELECT {seq}, 'made', 'd' || n % 4, CASE WHEN n % 10 = 0 THEN 'k' || n END, '{{}}' {mine}""",
        f"""INSERT INTO outbox_journal (first, state, count, destination, seqs)
        SELECT min({seq}), 'sent', count(*), 'd' || n % 4, range_agg(int8range({seq}, {seq}, '[]'))
        {mine} WHERE n <= {each} / 2 GROUP BY day, n / 400, n % 4""",
        f"""INSERT INTO outbox_dead (seq, kin, destination, key)
        SELECT {seq}, 'kin' || n % 7, 'd' || n % 4, CASE WHEN n % 10 = 0 THEN 'k' || n END {mine}
        WHERE n > {each} / 2""",
        f"INSERT INTO outbox_trouble (seq, attempts, code) SELECT {seq}, 1, 'gone' {mine} WHERE n > {each} / 2",
        "ANALYZE outbox_messages, outbox_journal, outbox_dead, outbox_trouble",
    ):
        box.connection.execute(statement.encode())


def as_the_relay(box: Box) -> None:
    """Plan as the connections of the relay and of people do."""
    for name, value in PLANNING.items():
        box.connection.execute("SELECT set_config(%s, %s, false)", [name, value])


def prepared(box: Box, verb: str) -> None:
    """Plan a verb for all parameters, as the tables are now."""
    statement = sql.statement(verb, box.schema)
    box.connection.execute("SET plan_cache_mode = force_generic_plan")
    box.connection.execute(f'PREPARE "{verb}" AS '.encode() + statement.text)
    nothing = f"({', '.join(['NULL'] * len(statement.names))})" if statement.names else ""
    box.connection.execute(f'EXPLAIN EXECUTE "{verb}" {nothing}'.encode())


def planned(box: Box, verb: str, **parameters: Any) -> tuple[set[str], int]:
    """Of which tables a plan reads many rows from the beginning, or which rows of its own it reads again and again; and
    how many pages it has read. Of functions that it calls, too."""
    names = sql.statement(verb, box.schema).names
    if not box.rows("SELECT FROM pg_prepared_statements WHERE name = %s", verb):
        prepared(box, verb)
    called = "({})" if names else ""
    values = psycopg.sql.SQL(", ").join(psycopg.sql.Literal(parameters[name]) for name in names)
    explain = psycopg.sql.SQL(f'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "{verb}" {called}').format(values)
    with _plans_of_functions(box) as plans:
        [[[plan]]] = box.connection.execute(explain).fetchall()
    box.connection.execute(f'DEALLOCATE "{verb}"'.encode())
    whole = {name for root in (plan["Plan"], *plans) for name in _read_whole(root)}
    return whole, plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


@contextmanager
def _plans_of_functions(box: Box) -> Iterator[list[dict[str, Any]]]:
    """The plans of the statements that functions run, as `auto_explain` tells them."""
    plans: list[dict[str, Any]] = []

    def noted(notice: psycopg.errors.Diagnostic) -> None:
        _, _, plan = (notice.message_primary or "").partition("plan:\n")
        if plan:
            plans.append(json.loads(plan)["Plan"])

    box.connection.execute("LOAD 'auto_explain'")
    settings = {"log_nested_statements": "on", "log_analyze": "on", "log_timing": "off", "log_format": "json"}
    for name, value in {**settings, "log_min_duration": "0"}.items():
        box.connection.execute("SELECT set_config(%s, %s, false)", [f"auto_explain.{name}", value])
    box.connection.execute("SET client_min_messages = log")
    box.connection.add_notice_handler(noted)
    yield plans
    box.connection.remove_notice_handler(noted)
    box.connection.execute("SET auto_explain.log_min_duration = -1")


def _read_whole(node: dict[str, Any]) -> Iterator[str]:
    """Also by an index of which it uses no condition."""
    scans = "Seq Scan", "Index Scan", "Index Only Scan"
    read = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    if node["Node Type"] in scans and "Index Cond" not in node and read >= MANY:
        yield node["Relation Name"]
    if node["Node Type"] == "CTE Scan" and node["Actual Loops"] > 1 and read >= MANY_AGAIN:
        yield node["CTE Name"]
    for below in node.get("Plans", ()):
        yield from _read_whole(below)
