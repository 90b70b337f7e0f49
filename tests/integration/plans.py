"""How PostgreSQL runs a statement of the relay, and how many pages it touches for that.

Bounds are on pages, not on time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psycopg.sql import SQL, Literal

from outbox_tasks.database import sql
from outbox_tasks.relay.store import Store

Plan = list[dict[str, Any]]


def explained(store: Store, verb: str, parameters: dict[str, Any]) -> Plan:
    """The nodes of a verb's plan for any parameters, the first with the pages of all; it was run, and rolled back."""
    found = sql.statement(verb, store.settings.database_schema)
    with store.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN")
        driver.execute(b"PREPARE looked AS " + found.text, prepare=False)
        values = [Literal(value) for value in found.values(parameters)]
        run = SQL("EXECUTE looked({})").format(SQL(", ").join(values)) if values else SQL("EXECUTE looked")
        [(plan,)] = driver.execute(SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + run, prepare=False)
        driver.execute("ROLLBACK")
        driver.execute("DEALLOCATE looked", prepare=False)
    return list(_nodes(plan[0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def pages(plan: Plan) -> int:
    return int(plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"])


def scanned(plan: Plan) -> set[str]:
    """The tables that are read from their beginning to their end."""
    return {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
