"""The driver executes our statements in the application's transaction. What users of SQLAlchemy rely on still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
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


def test_who_listens_to_statements_hears_ours(outbox: Outbox, engine: Engine, rows: Rows) -> None:
    """Tracing listens so. tests/unit/test_internals.py has the other ways."""
    heard: list[str] = []
    own = create_engine(engine.url)
    event.listen(own, "before_cursor_execute", lambda *args: heard.append(args[2]))
    publish(outbox, own)
    own.dispose()
    assert len(rows.hot()) == 1
    assert any("outbox_write_one" in each for each in heard)


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
