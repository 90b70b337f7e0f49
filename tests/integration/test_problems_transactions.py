"""Problems of transactions that others have left open, on a real PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, text

from outbox_tasks import Outbox
from outbox_tasks.database.connection import Database
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.operating.problems import Problem, Severity, transactions
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows
from tests.integration.doctoring import found, sql

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


def test_a_writer_of_messages_with_keys_holds_up_others_but_no_other_does(
    settings: MakeSettings, rows: Rows, engine: Engine
) -> None:
    slow = settings(stale_after=SOON)
    with session(engine) as (connection, pid):
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(-5, 7)"))  # as another outbox does
        Outbox(slow).publish(connection, "order.created", {}, to="orders")
        assert of(slow, "writer_open", pid) is None
        assert of(slow, "xmin_held", pid) is not None
        Outbox(slow).publish(connection, "order.created", {}, to="orders", key="order:42")
        assert of(slow, "writer_open", pid) is not None
    assert of(slow, "writer_open", pid) is None


def test_a_writer_of_many_keys_holds_up_all_and_is_named_soon(
    settings: MakeSettings, rows: Rows, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ALL_KEYS_SECONDS", SOON)
    usual = settings()
    with session(engine) as (connection, pid):
        for n in range(32):
            Outbox(usual).publish(connection, "order.created", {}, to="orders", key=f"order:{n}")
        assert of(usual, "writer_open", pid) is None
        few = of(settings(stale_after=SOON), "writer_open", pid)
        assert few is not None
        assert "with 32 keys" in few.fact
        Outbox(usual).publish(connection, "order.created", {}, to="orders", key="order:32")
        all_keys = of(usual, "writer_open", pid)
        assert all_keys is not None
        assert "more than 32 keys" in all_keys.fact
        assert f"SELECT pg_terminate_backend({pid});" in all_keys.remedy
    assert of(usual, "writer_open", pid) is None


def test_a_prepared_transaction(settings: MakeSettings, rows: Rows, engine: Engine, schema: str) -> None:
    soon, run, name = settings(stale_after=SOON), sql(engine, schema), f"forgotten by {schema}"
    publish = "SELECT outbox_publish('a', '{}'::text, key => 'k', destination => 'orders')"
    run("BEGIN", publish, f"PREPARE TRANSACTION '{name}'")
    end = f"ROLLBACK PREPARED '{name}';  "
    try:
        left = found(soon, "prepared_transaction")["prepared_transaction"]
        assert f"'{name}' of outbox" in left.fact
        assert "under the same keys waits" in left.cause
        assert left.remedy.partition("--")[0] == end
        run(publish)
        [later] = [row.id for row in rows.shown()]
        with closing(Database.connect(soon)) as database:
            waits = str(Lookup(database).one(UUID(str(later)))["waits"])
        assert waits.startswith("A prepared transaction has written a message of this key"), waits
    finally:
        run(end)
    assert found(soon, "prepared_transaction") == {}


def test_a_server_without_autovacuum(settings: MakeSettings, rows: Rows) -> None:
    """Which counts nothing, in the test."""
    url = f"{settings().database_url}?options=-c%20track_counts%3Doff"
    off = found(settings(database_url=url, statement_timeout=0), "autovacuum_off")["autovacuum_off"]
    assert off.fact == "Autovacuum is off on this server."
    assert off.remedy == "ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf();"
