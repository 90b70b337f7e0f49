"""The tables: made once, by any number of hosts, in the caller's transaction; those of another version are refused; and
what they lack of what `init` and maintenance put there comes back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, inspect, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine

from outbox_tasks import Outbox
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.engine import engine_url
from outbox_tasks.database.schema import VERSION
from outbox_tasks.errors import DatabaseUnavailable, SchemaMismatch, SchemaMissing, SourceTrouble
from outbox_tasks.feeds.source import open_source
from outbox_tasks.migrations import upgrade, upgrade_feed
from outbox_tasks.model import Step
from outbox_tasks.operating import days
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.claims import drain_batches, take
from tests.conftest import MakeSettings, Rows, Stream
from tests.integration.doctoring import found
from tests.integration.own_database import Place, own_database


@pytest.fixture
def store(settings: MakeSettings) -> Iterator[Store]:
    """A store over tables that have yet to be made."""
    made = Store.connect(settings())
    yield made
    made.close()


class TestUpgrade:
    def test_makes_the_tables_once(self, settings: MakeSettings, store: Store, schema: str) -> None:
        for made in (True, False, False):
            with migrating(settings()) as connection:
                assert upgrade(connection, schema) is made
        store.check_version()

    def test_trouble_is_named_and_a_mistake_of_ours_is_raised_as_it_is(self, settings: MakeSettings) -> None:
        away = settings(database_url="postgresql://127.0.0.1:1/none")
        with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1"), migrating(away):
            pass
        with pytest.raises(ProgrammingError), migrating(settings()) as connection:
            connection.exec_driver_sql("SELECT nothing")

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

        async def work() -> bool:
            asynchronous = create_async_engine(engine.url.set(drivername="postgresql+asyncpg"))
            async with asynchronous.begin() as connection:
                made = await connection.run_sync(upgrade, schema)
            await asynchronous.dispose()
            return made

        assert asyncio.run(work()) is True
        store.check_version()

    def test_of_many_at_once_one_makes_the_tables(self, settings: MakeSettings, store: Store, schema: str) -> None:
        together = threading.Barrier(8)

        def run(_: int) -> bool:
            with migrating(settings()) as connection:
                together.wait(10)
                return upgrade(connection, schema)

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(run, range(8)))
        assert sorted(made) == [False] * 7 + [True]
        store.check_version()

    def test_is_part_of_the_callers_transaction(self, connection: Connection, engine: Engine, schema: str) -> None:
        with connection.begin() as transaction:
            theirs = {"search_path": "pg_catalog, public", "DateStyle": "German, DMY", "TimeZone": "Asia/Tokyo"}
            if int(connection.scalar(text("SHOW server_version_num"))) < 190_000:  # newer ones take no other value
                theirs |= {"standard_conforming_strings": "off"}
            for name, value in theirs.items():
                connection.execute(text("SELECT set_config(:name, :value, true)"), {"name": name, "value": value})
            upgrade(connection, schema)
            for name, value in theirs.items():
                assert connection.scalar(text("SELECT current_setting(:name)"), {"name": name}) == value
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
        assert inspect(engine).has_table("outbox_messages", schema)
        default.check_version()
        assert take(default, {"orders": 1}) == []
        assert days.turn(default) == 0
        default.close()

    def test_the_script_that_init_prints_makes_the_same_tables_once(self, engine: Engine) -> None:
        with own_database(engine) as place:
            printed = place.command("init", "--sql", settings=place.settings())
            assert printed.exit_code == 0
            assert place.ask("SELECT to_regclass('outbox_versions')::text") is None
            for _ in range(2):
                place.run(printed.output)
            again = place.command("init", "--json", settings=place.settings())
            assert {"version": VERSION, "made": False}.items() <= json.loads(again.output).items()


class TestVersion:
    def test_without_tables_the_remedy_is_named(self, store: Store, schema: str) -> None:
        with pytest.raises(SchemaMissing, match=rf"{schema}.*Run `outbox-tasks init`"):
            store.check_version()

    def test_of_another_release_stops_the_relay_and_is_refused_by_init(
        self, rows: Rows, store: Store, schema: str
    ) -> None:
        found = VERSION + 1
        with rows.engine.begin() as connection:
            connection.execute(rows.tables.versions.update().values(version=found))
        says = rf"{schema}.* are of version {found}, .* needs version {VERSION}\..*outbox-tasks drain.*DROP SCHEMA"
        with pytest.raises(SchemaMismatch, match=says):
            store.check_version()
        with pytest.raises(SchemaMismatch, match=says), migrating(store.settings) as connection:
            upgrade(connection, schema)


TABLES = """
SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
WHERE relname LIKE 'outbox%' AND (relkind = 'p' OR relkind = 'r' AND NOT relispartition)
"""

A_DAY_LATER = "UPDATE outbox_days SET date = date - 1, ended_at = ended_at - interval '1 day'"


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as made:
        assert made.command("init", settings=made.settings()).exit_code == 0
        yield made


def publish(place: Place, **more: object) -> None:
    with place.engine.begin() as connection:
        Outbox(place.settings()).publish(connection, "order.created", {}, to="orders", **more)  # type: ignore[arg-type]


def sent(settings: Settings) -> int:
    store, publishers = Store.connect(settings), Publishers(settings)
    try:
        return drain_batches(store, publishers)[Step.SENT]
    finally:
        publishers.close()
        store.close()


class TestTablesWithoutRows:
    """From a dump without data, whose first days were gone; or emptied by the tests of an application."""

    def test_are_filled_by_init(self, place: Place, stream: Stream) -> None:
        settings = place.settings(destinations={"orders": {"url": stream.url}})
        place.run(f"TRUNCATE {place.ask(TABLES)}", "DROP TABLE outbox_messages_0, outbox_journal_0")
        place.run("ALTER SEQUENCE outbox_seq RESTART")
        refused = place.command("drain", settings=settings)
        assert "init" in refused.output
        again = place.command("init", settings=settings)
        assert (again.exit_code, again.output) == (0, f"The outbox tables are already at version {VERSION}.\n")
        for _ in range(2):
            publish(place, key="order:1")
            assert sent(settings) == 1
            place.run(A_DAY_LATER)
            assert place.command("maintain", settings=settings).exit_code == 0
        assert place.ask("SELECT string_agg(number::text, ' ' ORDER BY number) FROM outbox_days") == "1 2 3"

    def test_of_which_nobody_knows_the_version_are_refused_in_a_line(self, place: Place) -> None:
        place.run(f"TRUNCATE {place.ask(TABLES)}", "COMMENT ON TABLE outbox_versions IS NULL")
        refused = place.command("init", settings=place.settings())
        assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
        assert "are of version unknown" in refused.output
        place.run(f"COMMENT ON TABLE outbox_versions IS '{VERSION}'")
        assert place.command("init", settings=place.settings()).exit_code == 0
        assert found(place.settings(), "sequence_behind") == {}


class TestASequenceThatIsBehind:
    def test_is_named_and_moved_by_maintenance(self, place: Place, stream: Stream) -> None:
        settings = place.settings(destinations={"orders": {"url": stream.url}})
        for _ in range(2):
            place.run(A_DAY_LATER)
            place.command("maintain", settings=settings)
        publish(place, key="order:1")
        place.run("ALTER SEQUENCE outbox_seq RESTART", "ALTER SEQUENCE outbox_audit_seq_seq RESTART")
        place.run("INSERT INTO outbox_audit (seq, who, action) VALUES (5, 'anna', 'pause')")
        assert found(settings, "sequence_behind")["sequence_behind"].remedy == "outbox-tasks maintain"
        assert sent(settings) == 0
        assert place.command("maintain", settings=settings).exit_code == 0
        assert found(settings, "sequence_behind") == {}
        publish(place, key="order:1")
        assert sent(settings) == 2
        assert place.ask("SELECT min(seq) >= 2::bigint << 32 FROM outbox_messages")
        assert place.ask("SELECT nextval('outbox_audit_seq_seq')") == 6


def test_a_database_that_is_not_in_utf8_is_refused(engine: Engine) -> None:
    name = f"outbox_test_{uuid4().hex[:12]}"
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
        place = Place(create_engine(engine.url.set(database=name)))
        try:
            refused = place.command("init", settings=place.settings())
            assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
            assert "in this database: it is in SQL_ASCII" in refused.output
            with closing(open_source("shop", place.url)) as source, pytest.raises(SourceTrouble, match="SQL_ASCII"):
                source.init()
        finally:
            place.engine.dispose()
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
