"""What the tests of the doctor share."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine

from outbox_tasks.operating.problems import Problem, examine
from outbox_tasks.settings import Settings

NOBODY = "redis://127.0.0.1:1/0"
"""Nobody listens there."""

Sql = Callable[..., None]


def found(settings: Settings, *only: str) -> dict[str, Problem]:
    """What the doctor finds of these codes, or of all, by code; of several findings of one code the last."""
    return {finding.code: finding for finding in examine(settings, only=only).everything}


def sql(engine: Engine, schema: str) -> Sql:
    """Runs statements in the test's schema, each its own transaction."""

    def run(*statements: str) -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            try:
                for statement in (f"SET search_path = {schema}", *statements):
                    connection.exec_driver_sql(statement)
            finally:
                connection.exec_driver_sql("RESET search_path")

    return run
