"""Migrated tables for more than a thousand tests, for a fraction of the time that it takes to make them.

If a test changed nothing but rows, its tables are emptied, and a later test is given them under another name. So
whoever still speaks to them by the old name finds nothing, as if they had been dropped.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError

from outbox_tasks.local.binaries import postgres_programs
from outbox_tasks.migrations import upgrade

PARTS = {
    "pg_attrdef": "oid",
    "pg_attribute": "attrelid",
    "pg_class": "oid",
    "pg_constraint": "oid",
    "pg_index": "indexrelid",
    "pg_namespace": "oid",
    "pg_proc": "oid",
    "pg_rewrite": "oid",
    "pg_sequence": "seqrelid",
    "pg_statistic": "starelid",
    "pg_trigger": "oid",
    "pg_type": "oid",
}
"""The catalogs in which migrated tables have rows, or get some by ANALYZE, and the column that names the object."""

CATALOG = text(
    # All that DROP SCHEMA … CASCADE would drop.
    "WITH RECURSIVE ours(class, id) AS (SELECT 'pg_namespace'::regclass::oid, to_regnamespace(:schema)::oid"
    " UNION SELECT d.classid, d.objid FROM ours JOIN pg_depend d ON d.refclassid = class AND d.refobjid = id)"
    " SELECT (SELECT count(*) FROM ours), count(*), count(*) FILTER (WHERE age(version) < age(CAST(:since AS xid))),"
    # VACUUM notes these in place. TRUNCATE leaves -1 for an index, and CREATE INDEX leaves 0.
    " (SELECT sum(CASE relkind WHEN 'i' THEN greatest(reltuples, 0) ELSE reltuples END)"
    " FROM pg_class WHERE oid IN (SELECT id FROM ours)) FROM ("
    + " UNION ALL ".join(
        f"SELECT xmin AS version FROM {table} WHERE {column} IN (SELECT id FROM ours)"
        for table, column in PARTS.items()
    )
    + ") rows_of_ours"
)
"""What a schema consists of, in numbers, and how much of it changed since a transaction."""

FUNCTIONS = text("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = to_regnamespace(:schema)")

OURS = "FROM pg_class WHERE relnamespace = to_regnamespace(:schema)"

TABLES = text(f"SELECT relname {OURS} AND relkind IN ('r', 'p') AND NOT relispartition")

WRITTEN = text(f"SELECT relname, pg_relation_size(oid) AS size {OURS} AND relkind = 'r' AND pg_relation_size(oid) > 0")

LARGE = 1 << 20
"""Who wrote so many bytes leaves a mark in the server's statistics."""


def new_name() -> str:
    """The name of a schema that nobody has."""
    return f"outbox_test_{uuid4().hex[:12]}"


@dataclass(frozen=True)
class Model:
    """Migrated tables, to make others after it. They are gone."""

    name: str
    script: str
    """What pg_dump says of them. It runs in half the time of all the migrations."""
    functions: str
    """Makes the functions anew: their text has the name of the schema."""
    sequences: str
    """Sets the sequences back."""
    tables: list[str]
    filled: set[str]
    """Tables in which the migrations leave rows."""

    @classmethod
    def make(cls, engine: Engine) -> Model:
        name = new_name()
        with engine.begin() as connection:
            upgrade(connection, name)
            of = {"schema": name}
            functions = connection.scalars(FUNCTIONS, of).all()
            tables = connection.scalars(TABLES, of).all()
            filled = connection.scalars(WRITTEN, of).all()
        script = dumped(engine, name)
        with engine.begin() as connection:
            _drop(connection, name)
        sequences = re.findall(r"^SELECT pg_catalog.setval.*;$", script, flags=re.MULTILINE)
        return cls(name, script, ";".join(functions), "".join(sequences), list(tables), set(filled))


def dumped(engine: Engine, schema: str) -> str:
    """What pg_dump says of a schema."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    argv = [str(postgres_programs() / "pg_dump"), f"--schema={schema}", "--inserts", url]
    whole = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    # Without the settings of the session that it begins with, and the commands of psql.
    return re.sub(r"^\\.*$", "", whole[whole.index("CREATE SCHEMA") :], flags=re.MULTILINE)


class Schemas:
    """The schemas of the tests in one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._given: dict[str, str] = {}
        """Who has migrated tables of ours, and the transaction that gave them."""
        self.spare: list[str] = []
        self._as_new: tuple[Any, ...] = ()
        """What CATALOG says of tables that were just made."""
        self._day: date | None = None
        """The day on which they were made: the archive has partitions from then on."""

    def make(self, schema: str) -> None:
        """Migrated tables in this schema, which there is not yet."""
        self._forget_yesterday()
        with self._engine.begin() as connection:
            if self.spare:
                script = f"ALTER SCHEMA {self.spare.pop()} RENAME TO {schema};{self._model.functions}"
            else:
                script = self._model.script
            _run(connection, "SET LOCAL check_function_bodies = false;" + script.replace(self._model.name, schema))
            since: str = connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one()
            self._as_new = self._as_new or self._catalog(connection, schema, since)
        self._given[schema] = since

    def end(self, schema: str, patience: str = "10s") -> None:
        """Keep it for a later test, or drop it. Fails if a transaction that has touched it doesn't end."""
        if schema in self._given and self._kept(schema, self._given.pop(schema), patience):
            return
        with self._engine.begin() as connection:
            _drop(connection, schema, patience)

    def _forget_yesterday(self) -> None:
        with self._engine.begin() as connection:
            today = connection.scalar(text("SELECT (now() AT TIME ZONE 'UTC')::date"))
            if today != self._day:
                for spare in self.spare:
                    _drop(connection, spare)
                self._given, self.spare, self._as_new, self._day = {}, [], (), today
                vars(self).pop("_model", None)

    @cached_property
    def _model(self) -> Model:
        return Model.make(self._engine)

    def _kept(self, schema: str, since: str, patience: str) -> bool:
        spare = new_name()
        try:
            with self._engine.begin() as connection:
                _limits(connection, patience)
                # Waits for every transaction that has touched them, as DROP SCHEMA does.
                _run(connection, "LOCK TABLE " + ", ".join(f"{schema}.{table}" for table in self._model.tables))
                if self._catalog(connection, schema, since) != self._as_new:
                    return False
                sizes = {row.relname: row.size for row in connection.execute(WRITTEN, {"schema": schema})}
                if sum(sizes.values()) > LARGE:
                    return False
                if written := [f"{schema}.{table}" for table in sizes if table not in self._model.filled]:
                    _run(connection, f"TRUNCATE {', '.join(written)} CASCADE")
                _run(connection, self._model.sequences.replace(self._model.name, schema))
                _run(connection, f"ALTER SCHEMA {schema} RENAME TO {spare}")
        except ProgrammingError:  # a table is missing
            return False
        self.spare.append(spare)
        return True

    def _catalog(self, connection: Connection, schema: str, since: str) -> tuple[Any, ...]:
        filled = " UNION ALL ".join(f"SELECT xmin AS version FROM {schema}.{table}" for table in self._model.filled)
        statement = text(CATALOG.text.replace(") rows_of_ours", f" UNION ALL {filled}) rows_of_ours"))
        return tuple(connection.execute(statement, {"schema": schema, "since": since}).one())


def _limits(connection: Connection, patience: str) -> None:
    _run(connection, f"SET LOCAL client_min_messages = warning; SET LOCAL lock_timeout = '{patience}'")


def _drop(connection: Connection, schema: str, patience: str = "10s") -> None:
    _limits(connection, patience)
    _run(connection, f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def _run(connection: Connection, script: str) -> None:
    connection.exec_driver_sql(script, execution_options={"no_parameters": True})
