"""How PostgreSQL runs a statement of the relay, and how many pages it touches for that.

Bounds are on pages, not on time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psycopg.sql import SQL, Literal
from sqlalchemy.sql import ClauseElement, Executable

from outbox_tasks.database import sql
from outbox_tasks.relay.store import Store

Plan = list[dict[str, Any]]


def explained(store: Store, statement: Executable | str, parameters: dict[str, Any]) -> Plan:
    """The nodes of the plan of a statement or verb, the first with the pages of all; it was run, and rolled back."""
    if isinstance(statement, str):
        return _explained_verb(store, statement, parameters)
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=store.engine.dialect)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        plan = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}", compiled.construct_params(parameters)
        ).scalar_one()
        connection.exec_driver_sql("ROLLBACK")
    return list(_nodes(plan[0]["Plan"]))


def _explained_verb(store: Store, verb: str, parameters: dict[str, Any]) -> Plan:
    """The plan for any parameters: a prepared statement is planned once."""
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
