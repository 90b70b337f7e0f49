"""Runs the verbs of `outbox_tasks/sql/`: each in a transaction of its own, or several in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outbox_tasks import sql
from outbox_tasks.database.connection import NETWORK_TIME, PIPE, Database
from outbox_tasks.database.patient import Patient


class Run(Protocol):
    """Runs a verb and returns its rows."""

    def __call__(self, verb: str, /, **parameters: Any) -> Sequence[Any]: ...


class Tables(Database):
    """The tables of one outbox. Raises `DatabaseUnavailable` or `SchemaMissing`."""

    # Otherwise PostgreSQL plans each claim anew, which takes a millisecond. The plan is always the same.
    session: ClassVar[Mapping[str, str]] = {**PIPE, "plan_cache_mode": "force_generic_plan"}

    def ask(self, verb: str, limit: float | None = None, /, **parameters: Any) -> Sequence[Any]:
        """Run a verb in a transaction of its own, and return its rows. `limit`: seconds that it may run, if not the
        usual ones."""
        if limit is not None:
            with self.transaction(limit) as run:
                return run(verb, **parameters)
        with self._driver() as driver:
            return self._execute(driver, verb, parameters)

    @contextmanager
    def transaction(self, limit: float | None = None) -> Iterator[Run]:
        """Run several verbs in one transaction. If this process is stopped meanwhile, the server undoes them soon.
        `limit`: see `ask`."""
        with self._driver() as driver, _patient(driver, limit):
            driver.execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5s'", prepare=False)
            if limit is not None:
                driver.execute("SELECT set_config('statement_timeout', %s, true)", [f"{limit * 1000:.0f}"])
            try:
                yield lambda verb, /, **parameters: self._execute(driver, verb, parameters)
            except BaseException:
                if not driver.closed:
                    driver.execute("ROLLBACK", prepare=False)
                raise
            driver.execute("COMMIT")

    def _execute(self, driver: psycopg.Connection[Any], verb: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
        statement = sql.statement(verb, self.settings.database_schema)
        cursor = psycopg.RawCursor(driver, row_factory=namedtuple_row)
        cursor.execute(statement.text, statement.values(parameters), binary=True)
        return cursor.fetchall() if cursor.description else ()

    @contextmanager
    def _driver(self) -> Iterator[Patient]:
        try:
            pooled = self.engine.raw_connection()
            driver: Patient = pooled.driver_connection  # type: ignore[assignment]
            try:
                yield driver
            except BaseException as error:
                self._part_with(pooled, driver, error)
                raise
            finally:
                pooled.close()
        except (psycopg.Error, PoolTimeout) as error:
            self._raise_ours(error)
            raise


@contextmanager
def _patient(driver: Patient, limit: float | None) -> Iterator[None]:
    """Wait for longer for the answers of this connection."""
    usual = driver.patience
    driver.patience = usual if limit is None else limit + NETWORK_TIME
    try:
        yield
    finally:
        driver.patience = usual
