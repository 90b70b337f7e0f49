"""An upgrade stops no writer, whoever holds a lock meanwhile: by init, and in Alembic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, text

from outbox_tasks import migrations
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.schema import VERSION
from outbox_tasks.errors import SchemaLocked
from outbox_tasks.migrations import upgrade
from tests.conftest import eventually
from tests.integration.own_database import Place, own_database
from tests.integration.test_alembic import Application

NEXT = VERSION + 1

CHANGE = "ALTER TABLE :schema.outbox_messages ADD COLUMN more text;"
"""The next version changes the table of messages."""

INSERT = text("SELECT outbox_publish('t', '{}'::text, destination => 'orders')")
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

Upgrade = Callable[[], Any]


@pytest.fixture
def place(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A database with the tables of this version, for a release with one more."""
    with own_database(engine) as made:
        with made.engine.begin() as connection:
            upgrade(connection)
        (tmp_path / f"{NEXT}_pre_more.sql").write_text(CHANGE)
        monkeypatch.setattr(migrations, "FOLDER", tmp_path)
        monkeypatch.setattr(migrations, "VERSION", NEXT)
        yield made


@pytest.fixture(params=["init", "alembic"])
def upgraded(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Upgrade:
    """Upgrades the tables, in one of the two ways."""

    def init() -> None:
        with migrating(place.settings()) as connection:
            upgrade(connection)

    (tmp_path / "alembic").mkdir()
    application = Application(place, tmp_path / "alembic", include_schemas=False)

    def alembic() -> None:
        command.upgrade(application.config, "head")

    return {"init": init, "alembic": alembic}[request.param]


@contextmanager
def reading(place: Place) -> Iterator[Connection]:
    """A transaction that has read messages, and stays open."""
    with place.engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM outbox_messages"))
        yield connection


@contextmanager
def beside(upgrade: Upgrade) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(upgrade)


def test_messages_are_written_while_an_upgrade_waits_for_an_open_transaction(place: Place, upgraded: Upgrade) -> None:
    with beside(upgraded) as done:
        with reading(place):
            eventually(lambda: done.done() or place.ask(WAITING))
            with place.engine.begin() as writer:
                writer.execute(text("SET LOCAL statement_timeout = '60s'"))
                writer.execute(INSERT)  # it would wait for the upgrade, and that one for the reader
            assert not done.done()
        done.result(120)
    assert place.ask("SELECT max(version) FROM outbox_versions") == NEXT
    assert place.ask("SELECT count(*) FROM outbox_messages") == 1


def test_it_gives_up_in_the_end_and_says_who_holds_the_lock(
    place: Place, upgraded: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "TRIES", 2)
    monkeypatch.setattr(migrations, "PAUSE", 0.1)
    with reading(place) as reader:
        pid = reader.scalar(text("SELECT pg_backend_pid()"))
        with pytest.raises(SchemaLocked) as refused:
            upgraded()
    assert f"process {pid} of {place.engine.url.username}, idle in transaction" in str(refused.value)
    assert place.ask("SELECT max(version) FROM outbox_versions") == VERSION
    upgraded()
    assert place.ask("SELECT max(version) FROM outbox_versions") == NEXT


def test_a_script_of_alembics_ends_instead_of_waiting(place: Place, tmp_path: Path) -> None:
    application = Application(place, tmp_path, include_schemas=False)
    command.upgrade(application.config, "head", sql=True)
    script = application.script.getvalue()
    with reading(place), pytest.raises(Exception, match="lock timeout"):
        place.run(script)
    place.run(script)
    assert place.ask("SELECT max(version) FROM outbox_versions") == NEXT
