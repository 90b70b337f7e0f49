"""The driver executes our statements in the application's transaction. What users of SQLAlchemy rely on still holds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Connection, Engine, create_engine, event, exc, text
from sqlalchemy.orm import Session

import outbox_tasks
from outbox_tasks.errors import NotInTransaction
from outbox_tasks.outbox import Outbox
from tests.conftest import Rows

OURS = str(Path(outbox_tasks.__file__).parent)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that SQLAlchemy itself executes."""
    texts: list[str] = []
    execute = Connection.exec_driver_sql

    def noting(self: Connection, statement: str, *args: Any, **options: Any) -> Any:
        texts.append(statement)
        return execute(self, statement, *args, **options)

    monkeypatch.setattr(Connection, "exec_driver_sql", noting)
    return texts


def publish(outbox: Outbox, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        outbox.publish(session, "order.created", {})


def test_the_driver_executes_alone(outbox: Outbox, engine: Engine, rows: Rows, seen: list[str]) -> None:
    publish(outbox, engine)
    with engine.begin() as connection:
        outbox.publish(connection, "order.created", {})
        outbox.publish(connection, "order.created", {})
    assert (len(rows.hot()), seen) == (3, [])


def test_after_a_rollback_inside_its_block_nothing_is_written(outbox: Outbox, engine: Engine, rows: Rows) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        transaction.rollback()
        with pytest.raises((exc.InvalidRequestError, NotInTransaction)):
            outbox.publish(connection, "order.created", {})
    assert rows.hot() == []


LISTEN: dict[str, Callable[[Engine, list[Any]], None]] = {
    "before": lambda engine, heard: event.listen(engine, "before_cursor_execute", lambda *a: heard.append(a[2])),
    "after": lambda engine, heard: event.listen(engine, "after_cursor_execute", lambda *a: heard.append(a[2])),
    "do": lambda engine, heard: event.listen(engine.dialect, "do_execute", lambda *a: heard.append(a[1])),
}


@pytest.mark.parametrize("way", LISTEN)
def test_who_listens_to_statements_hears_ours(outbox: Outbox, engine: Engine, rows: Rows, way: str) -> None:
    """Tracing listens so."""
    heard: list[str] = []
    own = create_engine(engine.url)
    LISTEN[way](own, heard)
    publish(outbox, own)
    own.dispose()
    assert len(rows.hot()) == 1
    assert any("outbox_write_one" in each for each in heard)


def test_echo_logs_ours(outbox: Outbox, engine: Engine, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    own = create_engine(engine.url)
    with caplog.at_level(logging.INFO, "sqlalchemy.engine"):
        publish(outbox, own)
    own.dispose()
    assert "outbox_write_one" in caplog.text


def test_its_errors_are_sqlalchemys(outbox: Outbox, engine: Engine, rows: Rows) -> None:
    with Session(engine) as session:
        session.begin()
        with pytest.raises(exc.DBAPIError):
            session.execute(text("SELECT 1/0"))
        with pytest.raises(exc.InternalError, match="transaction is aborted") as raised:
            outbox.publish(session, "order.created", {})
        session.rollback()
    assert "outbox_write_one" in str(raised.value.statement)


def test_a_lost_connection_leaves_the_pool(outbox: Outbox, engine: Engine, rows: Rows) -> None:
    own = create_engine(engine.url)
    with Session(own) as session:
        session.begin()
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with engine.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with pytest.raises(exc.OperationalError) as raised:
            outbox.publish(session, "order.created", {})
        assert raised.value.connection_invalidated
        session.rollback()
        with session.begin():
            outbox.publish(session, "order.created", {})
    own.dispose()
    assert len(rows.hot()) == 1


def test_other_errors_stay_as_they_are(
    outbox: Outbox, engine: Engine, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery's time limit: a signal raises it anywhere."""
    with Session(engine) as session:
        session.begin()
        driver = session.connection().connection.dbapi_connection

        class Interrupted(psycopg.Cursor[Any]):
            def execute(self, *args: Any, **options: Any) -> Any:
                raise SoftTimeLimitExceeded("enough")

        monkeypatch.setattr(driver, "cursor_factory", Interrupted)
        with pytest.raises(SoftTimeLimitExceeded, match="enough"):
            outbox.publish(session, "order.created", {})
        assert not session.connection().invalidated
