"""The tables: made once, by any number of hosts, in the caller's transaction; and brought to the next version."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, MetaData, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from outbox_tasks import migrations
from outbox_tasks.database.connection import engine_url, migrating
from outbox_tasks.database.schema import FIRST, VERSION, tables
from outbox_tasks.errors import SchemaMissing, SchemaOutgrown, SchemaTooNew, SchemaTooOld
from outbox_tasks.migrations import finish, upgrade, upgrade_feed
from outbox_tasks.operating.archive import days
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.claims import take
from tests.conftest import MakeSettings, Rows
from tests.integration.own_database import own_database

ALL = list(range(FIRST, VERSION + 1))


@pytest.fixture
def store(settings: MakeSettings) -> Iterator[Store]:
    """A store over tables that have yet to be made."""
    made = Store.connect(settings())
    yield made
    made.close()


@pytest.fixture
def migrated(settings: MakeSettings) -> Settings:
    made = settings()
    with migrating(made) as connection:
        upgrade(connection, made.database_schema)
    return made


def table_names(engine: Engine, schema: str) -> set[str]:
    return set(inspect(engine).get_table_names(schema=schema))


class TestUpgrade:
    def test_makes_the_tables_once(self, settings: MakeSettings, store: Store, schema: str) -> None:
        for applied in (ALL, [], []):
            with migrating(settings()) as connection:
                assert upgrade(connection, schema) == applied
        store.check_version()

    @pytest.mark.parametrize("feed_first", [True, False])
    def test_beside_the_tables_of_a_feed(self, engine: Engine, schema: str, feed_first: bool) -> None:
        """Whichever came first, the inbox is the same one, and its marks stay."""
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
            for make in (upgrade_feed, upgrade) if feed_first else (upgrade, upgrade_feed):
                make(connection, schema)
                connection.execute(text(f"INSERT INTO {schema}.outbox_inbox VALUES ('{make.__name__}', '1')"))
            found = connection.execute(
                text("SELECT reloptions FROM pg_class WHERE oid = to_regclass(:name)"),
                {"name": f"{schema}.outbox_inbox"},
            )
            assert len(found.scalar_one()) == 4
            assert connection.scalar(text(f"SELECT count(*) FROM {schema}.outbox_inbox")) == 2
            upgrade_feed(connection, schema)

    def test_through_an_asynchronous_engine(self, engine: Engine, store: Store, schema: str) -> None:
        """As Alembic's template for asyncio does it."""

        async def work() -> list[int]:
            asynchronous = create_async_engine(engine.url.set(drivername="postgresql+asyncpg"))
            async with asynchronous.begin() as connection:
                applied = await connection.run_sync(upgrade, schema)
            await asynchronous.dispose()
            return applied

        assert asyncio.run(work()) == ALL
        store.check_version()

    def test_a_rollback_undoes_it(self, connection: Connection, engine: Engine, schema: str) -> None:
        with connection.begin() as transaction:
            upgrade(connection, schema)
            transaction.rollback()
        assert table_names(engine, schema) == set()

    def test_many_upgrades_at_once_apply_each_version_once(
        self, settings: MakeSettings, store: Store, schema: str
    ) -> None:
        together = threading.Barrier(8)

        def run(_: int) -> list[int]:
            with migrating(settings()) as connection:
                together.wait(10)
                return upgrade(connection, schema)

        with ThreadPoolExecutor(8) as pool:
            applied = list(pool.map(run, range(8)))
        assert sorted(applied) == [[]] * 7 + [ALL]
        store.check_version()

    def test_is_part_of_the_callers_transaction(self, connection: Connection, engine: Engine, schema: str) -> None:
        with connection.begin() as transaction:
            upgrade(connection, schema)
            assert connection.scalar(text(f"SELECT count(*) FROM {schema}.outbox_all")) == 0
            transaction.rollback()
        assert schema not in inspect(engine).get_schema_names()

    def test_without_a_schema_uses_the_first_of_the_search_path(
        self, settings: MakeSettings, engine: Engine, schema: str
    ) -> None:
        url = engine_url(settings().database_url or "")
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        url = url.update_query_dict({"options": f"-c search_path={schema}"})
        default = Store.connect(settings(database_url=url.render_as_string(hide_password=False), database_schema=None))
        with migrating(default.settings) as connection:
            upgrade(connection)
        assert "outbox_messages" in table_names(engine, schema)
        default.check_version()
        assert take(default, {"orders": 1}, str(UUID(int=1))) == []
        assert days.turn(default) == 0
        default.close()

    def test_takes_a_schema_name_that_needs_quotes(
        self, connection: Connection, settings: MakeSettings, schema: str
    ) -> None:
        name = settings(database_schema=f"{schema}_Mixed_Case").database_schema
        with connection.begin() as transaction:
            upgrade(connection, name)
            connection.execute(text(f"SELECT \"{name}\".outbox_publish('a', '{{}}'::text, destination => 'orders')"))
            assert connection.scalar(text(f'SELECT count(*) FROM "{name}".outbox_all')) == 1
            assert connection.scalar(text(f'SELECT "{name}".outbox_day_make(3)'))
            transaction.rollback()

    def test_files_are_numbered_without_a_gap_up_to_the_version(self) -> None:
        assert list(migrations.migrations()) == ALL


class TestVersion:
    def test_without_tables_the_remedy_is_named(self, store: Store, schema: str) -> None:
        with pytest.raises(SchemaMissing, match=rf"{schema}.*Run `outbox-tasks init`"):
            store.check_version()

    def test_without_any_version_they_are_missing(self, migrated: Settings, store: Store, rows: Rows) -> None:
        with rows.engine.begin() as connection:
            connection.execute(rows.tables.versions.delete())
        with pytest.raises(SchemaMissing):
            store.check_version()

    @pytest.mark.parametrize(
        ("found", "needed", "error"),
        [
            (FIRST - 1, VERSION, SchemaOutgrown),
            (VERSION, VERSION + 1, SchemaTooOld),
            (VERSION + 1, VERSION, SchemaTooNew),
        ],
        ids=["before the first", "older", "newer"],
    )
    def test_of_another_release_stops_the_relay(
        self, rows: Rows, store: Store, found: int, needed: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outbox_tasks.relay.store.VERSION", needed)
        self.note(rows, found)
        with pytest.raises(error, match=rf"version {found}.*{needed}") as refused:
            store.check_version()
        assert refused.type is error

    @pytest.mark.parametrize("found", [1, FIRST - 1])
    def test_of_before_the_first_release_is_drained_and_not_upgraded(
        self, rows: Rows, settings: MakeSettings, schema: str, found: int
    ) -> None:
        self.note(rows, found)
        says = "Let the release that made them send what is left"
        with pytest.raises(SchemaOutgrown, match=says), migrating(settings()) as connection:
            upgrade(connection, schema)

    def note(self, rows: Rows, version: int) -> None:
        with rows.engine.begin() as connection:
            connection.execute(rows.tables.versions.delete())
            connection.execute(rows.tables.versions.insert().values(version=version))

    def test_of_a_newer_release_is_not_upgraded(self, rows: Rows, settings: MakeSettings, schema: str) -> None:
        with rows.engine.begin() as connection:
            connection.execute(rows.tables.versions.insert().values(version=VERSION + 1))
        with pytest.raises(SchemaTooNew), migrating(settings()) as connection:
            upgrade(connection, schema)


class TestTables:
    def test_are_those_that_our_statements_know(self, migrated: Settings, engine: Engine, schema: str) -> None:
        known, found = tables(schema), MetaData()
        found.reflect(engine, schema=schema, views=True, only=[each.name for each in vars(known).values()])

        def columns(table: Any) -> set[tuple[Any, ...]]:
            view = table.name in ("outbox_at_work", "outbox_archive")
            types = {
                c.name: re.sub("^FLOAT$", "DOUBLE PRECISION", c.type.compile(engine.dialect)) for c in table.columns
            }
            return {(c.name, types[c.name], view or c.nullable, view or c.primary_key) for c in table.columns}

        for each in vars(known).values():
            there = found.tables[f"{schema}.{each.name}"]
            assert columns(each) - columns(there) == set(), each.name
            assert {index.name for index in each.indexes} == {index.name for index in there.indexes}, each.name
            if each.primary_key:
                assert columns(each) == columns(there)


class TestNext:
    """A release with two more versions: files in a directory of the test."""

    @pytest.fixture(autouse=True)
    def plan(self, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The tables of this release are there before: others are made after these."""
        add = "ALTER TABLE :schema.outbox_heartbeats ADD {};"
        (tmp_path / "014_pre_add_note.sql").write_text(add.format("note text"))
        (tmp_path / "014_post_note.sql").write_text("ALTER TABLE :schema.outbox_heartbeats ALTER note SET NOT NULL;")
        (tmp_path / "015_pre_add_mark.sql").write_text(add.format("mark text"))
        monkeypatch.setattr(migrations, "FOLDER", tmp_path)
        monkeypatch.setattr(migrations, "VERSION", 15)
        return tmp_path

    def columns(self, engine: Engine, schema: str) -> dict[str, bool]:
        """The new columns, and whether they may be null."""
        found = inspect(engine).get_columns("outbox_heartbeats", schema)
        return {column["name"]: column["nullable"] for column in found if column["name"] in ("note", "mark")}

    def test_comes_in_the_order_of_the_numbers(self, engine: Engine, schema: str) -> None:
        with engine.begin() as connection:
            assert [upgrade(connection, schema, to=14), upgrade(connection, schema)] == [[14], [15]]
        assert self.columns(engine, schema) == {"note": True, "mark": True}

    def test_comes_with_new_tables_too(self, connection: Connection, schema: str) -> None:
        with connection.begin() as transaction:
            assert upgrade(connection, f"{schema}_new") == [*ALL, 14, 15]
            transaction.rollback()

    def test_is_finished_once_when_somebody_says_so(self, rows: Rows, engine: Engine, schema: str) -> None:
        with engine.begin() as connection:
            assert finish(connection, schema) == []
            upgrade(connection, schema)
        assert self.columns(engine, schema)["note"]
        with engine.begin() as connection:
            assert [finish(connection, schema), finish(connection, schema)] == [[14], []]
            finished = connection.scalars(select(rows.tables.versions.c.version).where(text("finished_at IS NOT NULL")))
            assert finished.all() == [14]
        assert not self.columns(engine, schema)["note"]

    def test_is_all_or_nothing(self, engine: Engine, schema: str, plan: Path) -> None:
        (plan / "015_pre_add_mark.sql").write_text("ALTER TABLE :schema.outbox_heartbeats ADD mark text; SELECT 1 / 0;")
        with pytest.raises(DBAPIError, match="division by zero"), engine.begin() as connection:
            upgrade(connection, schema)
        assert self.columns(engine, schema) == {}

    def test_of_init_is_a_transaction_of_its_own(self, engine: Engine, plan: Path) -> None:
        """What is done stays done, and no lock is held meanwhile."""
        fails = "ALTER TABLE :schema.outbox_heartbeats ADD mark text; SELECT 1 / 0;"
        works = (plan / "015_pre_add_mark.sql").read_text()
        with own_database(engine) as place:
            (plan / "015_pre_add_mark.sql").write_text(fails)
            assert place.command("init", settings=place.settings()).exit_code != 0
            assert list(self.columns(place.engine, "public")) == ["note"]
            (plan / "015_pre_add_mark.sql").write_text(works)
            for applied, finished in (([15], [14]), ([], [])):
                done = place.command("init", "--finish", "--json", settings=place.settings())
                assert done.exit_code == 0, done.output
                said = json.loads(done.output)
                assert (said["applied"], said["finished"]) == (applied, finished)
            assert self.columns(place.engine, "public") == {"note": False, "mark": True}
