"""Problems of the tables, and of transactions that others have left open: brought about on a real PostgreSQL, and gone
when the remedy was taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from outbox_tasks import Outbox
from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import VERSION
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.operating.problems import Problem, Severity, transactions
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, eventually
from tests.integration.doctoring import Sql, found, login, sql


@pytest.fixture
def run(rows: Rows, engine: Engine, schema: str) -> Sql:
    """Runs statements over migrated tables."""
    return sql(engine, schema)


OF_TABLES = (
    "schema_missing", "schema_mismatch", "rights_missing", "index_missing", "index_invalid", "autovacuum_off",
    "dead_rows",
)  # fmt: skip

COUNTED = ("SELECT pg_sleep(1.1)", "SELECT 1")
"""A session tells the statistics once a second what it has done, at the end of a statement."""


def test_new_tables_have_no_problem(settings: MakeSettings, run: Sql) -> None:
    assert found(settings(), *OF_TABLES) == {}


def test_missing_tables(settings: MakeSettings, schema: str) -> None:
    missing = found(settings())["schema_missing"]
    assert missing.severity is Severity.ERROR
    assert schema in missing.fact
    assert missing.remedy.startswith("outbox-tasks init")


def test_tables_of_another_release(settings: MakeSettings, run: Sql) -> None:
    for version in (VERSION - 1, VERSION + 1):
        run(f"UPDATE outbox_versions SET version = {version}")
        assert f"version {version}" in found(settings(), "schema_mismatch")["schema_mismatch"].fact


def test_a_missing_index_is_made_by_the_statement_that_is_given(settings: MakeSettings, run: Sql) -> None:
    """One of a table with partitions can't be made concurrently."""
    gone = ("ready_lanes", "dead_kin", "inbox_received_at", "messages_id", "messages_about")
    run(*(f"DROP INDEX outbox_{name}" for name in gone))
    remedies = []
    while missing := found(settings(), "index_missing"):
        assert missing["index_missing"].severity is Severity.ERROR
        assert found(settings(), "dead_letters").keys() <= {"index_missing"}, "what needs them is not counted"
        remedies.append(missing["index_missing"].remedy)
        run(remedies[-1])
    assert (len(remedies), sum("CREATE INDEX CONCURRENTLY" in remedy for remedy in remedies)) == (5, 3)


def test_an_index_whose_build_was_broken_off(settings: MakeSettings, run: Sql, rows: Rows) -> None:
    rows.insert(2)
    run("DROP INDEX outbox_ready_keys")
    with pytest.raises(DBAPIError, match="could not create unique index"):
        run("CREATE UNIQUE INDEX CONCURRENTLY outbox_ready_keys ON outbox_ready (destination, priority)")
    invalid = found(settings(), "index_invalid")["index_invalid"]
    assert "outbox_ready_keys" in invalid.fact
    assert invalid.remedy.startswith("REINDEX INDEX CONCURRENTLY")


def test_a_table_without_autovacuum(settings: MakeSettings, run: Sql) -> None:
    run("ALTER TABLE outbox_ready SET (autovacuum_enabled = off)")
    off = found(settings(), "autovacuum_off")["autovacuum_off"]
    assert off.fact.endswith("outbox_ready.")
    run(off.remedy)
    assert found(settings(), "autovacuum_off") == {}


def test_dead_rows_that_nobody_or_no_vacuum_removes(
    settings: MakeSettings, run: Sql, rows: Rows, engine: Engine
) -> None:
    """As under an open snapshot: autovacuum comes each minute, and removes nothing."""
    run("ALTER TABLE outbox_ready SET (autovacuum_enabled = false, autovacuum_vacuum_threshold = 3)")
    rows.insert(200)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader, reader.begin():
        reader.execute(text("SELECT pg_current_snapshot()"))
        run("DELETE FROM outbox_ready", *COUNTED)
        dead = eventually(lambda: found(settings(), "dead_rows").get("dead_rows"))
        assert "has 200 dead rows" in dead.fact
        assert "never" in dead.fact
        run("VACUUM outbox_ready")
        [(pid,)] = reader.execute(text("SELECT pg_backend_pid()"))
        soon = settings()
        eventually(lambda: any(" ago. " in problem.fact for problem in found(soon, "dead_rows").values()))
        left = found(soon, "dead_rows")["dead_rows"]
        assert f"The oldest snapshot is held by the session {pid} (" in left.fact
        assert f"SELECT pg_terminate_backend({pid});" in left.remedy
        run("ALTER TABLE outbox_ready SET (autovacuum_vacuum_threshold = 10)")
        assert "dead_rows" not in found(settings(), "dead_rows"), "a busy minute leaves so many"
    run(left.remedy.partition(";")[0])
    eventually(lambda: not found(settings(stale_after=0.001), "dead_rows"))


class TestRights:
    @pytest.fixture
    def role(self, engine: Engine, rows: Rows, schema: str) -> Iterator[tuple[str, str]]:
        """A role that may log in and look into the schema, and nothing else; and a URL with it."""
        with login(engine, schema) as made:
            yield made

    def test_are_granted_by_the_statements_that_are_given(
        self, settings: MakeSettings, role: tuple[str, str], run: Sql
    ) -> None:
        theirs = settings(database_url=role[1])
        missing = found(theirs, "rights_missing")["rights_missing"]
        assert missing.severity is Severity.ERROR
        assert "secret" not in str(missing)
        run(*missing.remedy.splitlines())
        assert found(theirs, *OF_TABLES) == {}

    def test_the_owner_has_all_and_one_without_the_schema_lacks_some(
        self, settings: MakeSettings, role: tuple[str, str], run: Sql, engine: Engine, schema: str
    ) -> None:
        run(f"REVOKE USAGE ON SCHEMA {schema} FROM {role[0]}")
        assert "rights_missing" in found(settings(database_url=role[1]))
        run(f"GRANT {engine.url.username} TO {role[0]}")
        assert found(settings(database_url=role[1]), "rights_missing") == {}


SOON = 0.001
"""Whatever is open at all is open for long."""


@contextmanager
def session(engine: Engine) -> Iterator[tuple[Connection, int]]:
    """A session in a transaction, and its process."""
    with engine.connect() as connection, connection.begin():
        driver: Any = connection.connection.driver_connection
        # A prepared statement would keep its snapshot until the next statement.
        [(pid,)] = driver.execute("SELECT pg_backend_pid()", prepare=False)
        yield connection, pid


def of(settings: Settings, code: str, pid: int) -> Problem | None:
    """The problem, if it is of this session: others may be on the same server."""
    problem = found(settings, code).get(code)
    return problem if problem and re.search(rf"\b{pid}\b", problem.fact + problem.remedy) else None


def test_a_transaction_that_keeps_dead_rows(settings: MakeSettings, rows: Rows, engine: Engine) -> None:
    with session(engine) as (connection, pid):
        connection.execute(text("DECLARE report CURSOR FOR SELECT 1"))
        held = of(settings(stale_after=SOON), "xmin_held", pid)
        assert held is not None
        assert held.severity is Severity.WARNING
        assert f"SELECT pg_terminate_backend({pid});" in held.remedy
        assert of(settings(), "xmin_held", pid) is None  # not for long, by the usual stale_after
        assert of(settings(stale_after=SOON), "writer_open", pid) is None
    assert of(settings(stale_after=SOON), "xmin_held", pid) is None


def test_a_writer_of_messages_with_keys_holds_up_others_and_one_of_many_keys_is_named_soon(
    settings: MakeSettings, rows: Rows, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ALL_KEYS_SECONDS", SOON)
    slow, usual = settings(stale_after=SOON), settings()
    with session(engine) as (connection, pid):
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(-5, 7)"))  # as another outbox does
        Outbox(usual).publish(connection, "order.created", {}, to="orders")
        assert of(slow, "writer_open", pid) is None
        assert of(slow, "xmin_held", pid) is not None
        for n in range(32):
            Outbox(usual).publish(connection, "order.created", {}, to="orders", key=f"order:{n}")
        assert of(usual, "writer_open", pid) is None
        few = of(slow, "writer_open", pid)
        assert few is not None
        assert "with 32 keys" in few.fact
        Outbox(usual).publish(connection, "order.created", {}, to="orders", key="order:32")
        all_keys = of(usual, "writer_open", pid)
        assert all_keys is not None
        assert "more than 32 keys" in all_keys.fact
        assert f"SELECT pg_terminate_backend({pid});" in all_keys.remedy
    assert of(slow, "writer_open", pid) is None


def test_a_prepared_transaction(settings: MakeSettings, rows: Rows, engine: Engine, schema: str) -> None:
    soon, run, name = settings(stale_after=SOON), sql(engine, schema), f"forgotten by {schema}"
    publish = "SELECT outbox_publish('a', '{}'::text, key => 'k', destination => 'orders')"
    run("BEGIN", publish, f"PREPARE TRANSACTION '{name}'")
    end = f"ROLLBACK PREPARED '{name}';  "
    try:
        left = found(soon, "prepared_transaction")["prepared_transaction"]
        assert f"'{name}' of outbox" in left.fact
        assert "under the same keys waits" in left.cause
        assert found(settings(), "prepared_transaction") == {}, "it is not there for long"
        assert left.remedy.partition("--")[0] == end
        run(publish)
        [later] = [row.id for row in rows.shown()]
        with closing(Database.connect(soon)) as database:
            waits = str(Lookup(database).one(UUID(str(later)))["waits"])
        assert waits.startswith("A prepared transaction has written a message of this key"), waits
    finally:
        run(end)
    assert found(soon, "prepared_transaction") == {}
