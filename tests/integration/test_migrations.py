"""The tables: made once, by any number of hosts, in the caller's transaction; and what is in them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, MetaData, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable

from outbox_tasks.database.connection import engine_url, migrating
from outbox_tasks.database.schema import VERSION, tables
from outbox_tasks.errors import SchemaMissing, SchemaTooNew, SchemaTooOld
from outbox_tasks.migrations import migrations, upgrade
from outbox_tasks.model import Bundle, Step, Ticket, Verdict
from outbox_tasks.operating.archive import partitions
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, eventually, seconds_from_now

ALL = list(range(1, VERSION + 1))

HANDED = {"attempts": 1, "lease": UUID(int=1), "handed_at": seconds_from_now(-9)}


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
        assert default.claim({"orders": 1}, str(UUID(int=1))) == []
        assert partitions.prepare_days(default, 8) == 1
        default.close()

    def test_takes_a_schema_name_that_needs_quotes(
        self, connection: Connection, settings: MakeSettings, schema: str
    ) -> None:
        name = settings(database_schema=f"{schema}_Mixed_Case").database_schema
        with connection.begin() as transaction:
            upgrade(connection, name)
            connection.execute(text(f"SELECT \"{name}\".outbox_publish('a', '{{}}'::text, destination => 'orders')"))
            assert connection.scalar(text(f'SELECT count(*) FROM "{name}".outbox_all')) == 1
            assert connection.scalar(text(f'SELECT "{name}".outbox_archive_prepare(8)')) == 1
            transaction.rollback()

    def test_files_are_numbered_without_a_gap_up_to_the_version(self) -> None:
        assert list(migrations()) == ALL

    def test_runs_in_an_applications_own_alembic(
        self, settings: MakeSettings, engine: Engine, schema: str, store: Store, tmp_path: Path
    ) -> None:
        url = engine_url(settings().database_url or "").render_as_string(hide_password=False)
        (tmp_path / "versions").mkdir()
        (tmp_path / "env.py").write_text(
            "from alembic import context\n"
            "from sqlalchemy import create_engine\n"
            "engine = create_engine(context.config.attributes['url'])\n"
            "with engine.connect() as connection:\n"
            f"    context.configure(connection=connection, version_table_schema='{schema}')\n"
            "    with context.begin_transaction():\n"
            "        context.run_migrations()\n"
            "engine.dispose()\n"
        )
        (tmp_path / "versions" / "one.py").write_text(
            "from alembic import op\n"
            "from outbox_tasks.migrations import upgrade as outbox_upgrade\n"
            "revision, down_revision = 'one', None\n"
            "def upgrade():\n"
            f"    outbox_upgrade(op.get_bind(), '{schema}')\n"
            "def downgrade():\n"
            "    pass\n"
        )
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        config = Config()
        config.set_main_option("script_location", str(tmp_path))
        config.set_main_option("path_separator", "os")
        config.attributes["url"] = url
        command.upgrade(config, "head")
        command.upgrade(config, "head")
        store.check_version()
        assert {"alembic_version", "outbox_messages"} <= table_names(engine, schema)


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
        ("version", "error"), [(VERSION - 1, SchemaTooOld), (VERSION + 1, SchemaTooNew)], ids=["older", "newer"]
    )
    def test_of_another_release_stops_the_relay(
        self, rows: Rows, store: Store, version: int, error: type[Exception]
    ) -> None:
        with rows.engine.begin() as connection:
            connection.execute(rows.tables.versions.delete())
            connection.execute(rows.tables.versions.insert().values(version=version))
        with pytest.raises(error, match=rf"version {version}.*{VERSION}"):
            store.check_version()

    def test_of_a_newer_release_is_not_upgraded(self, rows: Rows, settings: MakeSettings, schema: str) -> None:
        with rows.engine.begin() as connection:
            connection.execute(rows.tables.versions.insert().values(version=VERSION + 1))
        with pytest.raises(SchemaTooNew), migrating(settings()) as connection:
            upgrade(connection, schema)


class TestTables:
    def test_are_those_of_the_statements(self, migrated: Settings, engine: Engine, schema: str) -> None:
        ours = tables(schema)
        reflected = MetaData()
        names = [table.name for table in (ours.messages, ours.archive, ours.versions)]
        reflected.reflect(engine, schema=schema, only=names)

        def shape(table: Any) -> list[Any]:
            columns = [(c.name, c.type.compile(engine.dialect), c.nullable, c.primary_key) for c in table.columns]
            return [
                sorted(columns),
                sorted(str(CreateIndex(index).compile(engine)) for index in table.indexes),
            ]

        for table in (ours.messages, ours.archive, ours.versions):
            found = reflected.tables[f"{schema}.{table.name}"]
            assert shape(found)[0] == shape(table)[0], table.name
        assert inspect(engine).get_pk_constraint("outbox_messages", schema)["constrained_columns"] == ["id"]

    def test_made_by_sqlalchemy_have_the_same_columns_in_the_same_words(
        self, migrated: Settings, connection: Connection, schema: str
    ) -> None:
        """Defaults and indexes too, as PostgreSQL itself tells them."""
        copy = f"{schema}_copy"
        with connection.begin() as transaction:
            connection.execute(text(f"CREATE SCHEMA {copy}"))
            function = "SELECT pg_get_functiondef(CAST(:name AS regproc))"
            made = connection.scalar(text(function), {"name": f"{schema}.outbox_error_group"})
            connection.exec_driver_sql(str(made).replace(schema, copy), execution_options={"no_parameters": True})
            connection.execute(CreateTable(tables(copy).messages))
            for index in tables(copy).messages.indexes:
                connection.execute(CreateIndex(index))

            def told(name: str) -> tuple[set[Any], set[Any]]:
                columns = connection.execute(
                    text(
                        "SELECT column_name, data_type, is_nullable, is_identity, identity_generation, column_default "
                        "FROM information_schema.columns WHERE table_schema = :s AND table_name = 'outbox_messages' "
                        "AND column_name <> 'id'"
                    ),
                    {"s": name},
                ).all()
                indexes = connection.scalars(
                    text("SELECT indexdef FROM pg_indexes WHERE schemaname = :s AND tablename = 'outbox_messages'"),
                    {"s": name},
                ).all()
                return {tuple(row) for row in columns}, {index.replace(name, "") for index in indexes}

            assert told(copy) == told(schema)
            transaction.rollback()

    def test_an_unknown_status_is_refused(self, rows: Rows) -> None:
        with pytest.raises(IntegrityError):
            rows.insert(status="sent")


class TestArchive:
    def partitions(self, rows: Rows, schema: str) -> list[str]:
        with rows.engine.connect() as connection:
            found = connection.scalars(
                text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = CAST(:parent AS regclass)"),
                {"parent": f"{schema}.outbox_archive"},
            )
            return sorted(name.removeprefix(f"{schema}.") for name in found)

    def test_has_a_partition_for_today_and_each_day_of_a_week(self, rows: Rows, schema: str) -> None:
        today = datetime.now(UTC).date()
        days = [f"outbox_archive_{today + timedelta(days=n):%Y%m%d}" for n in range(8)]
        assert self.partitions(rows, schema) == [*days, "outbox_archive_default"]

    def test_prepared_again_makes_only_what_is_missing(self, rows: Rows, store: Store, schema: str) -> None:
        assert partitions.prepare_days(store) == 0
        assert partitions.prepare_days(store, 9) == 2
        assert partitions.prepare_days(store, 9) == 0
        assert len(self.partitions(rows, schema)) == 11

    def test_prepared_by_many_at_once_is_prepared_once(self, rows: Rows, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(partial(partitions.prepare_days, store), [12] * 4)) == 5

    def archive_row(self, rows: Rows, day: int) -> str:
        with rows.engine.begin() as connection:
            return str(
                connection.scalar(
                    rows.tables.archive.insert()
                    .values(
                        seq=1, id=UUID(int=1), event_type="a", destination="orders", payload=b"", state="sent",
                        content_type="text/plain", headers={}, attempts=1, created_at=seconds_from_now(0),
                        finished_at=seconds_from_now(day * 86400),
                    )
                    .returning(text("tableoid::regclass::text"))
                )
            )  # fmt: skip

    @pytest.mark.parametrize(("day", "partition"), [(0, "outbox_archive_2"), (8, "default"), (-1, "default")])
    def test_takes_a_row_of_any_day(self, rows: Rows, day: int, partition: str) -> None:
        assert partition in self.archive_row(rows, day)

    def test_a_day_that_began_in_the_default_partition_stays_there(self, rows: Rows, store: Store, schema: str) -> None:
        self.archive_row(rows, 8)
        assert partitions.prepare_days(store, 9) == 1
        assert len(self.partitions(rows, schema)) == 10
        assert len(rows.archived()) == 1

    def test_is_found_by_id_through_an_index_on_each_partition(self, rows: Rows, schema: str) -> None:
        with rows.engine.connect() as connection:
            indexed = connection.scalars(
                text("SELECT tablename FROM pg_indexes WHERE schemaname = :s AND indexdef LIKE '%(id)%'"), {"s": schema}
            ).all()
        assert set(self.partitions(rows, schema)) <= set(indexed)


class TestOutboxPublish:
    """The SQL function for writers in any language."""

    @pytest.fixture
    def call(self, connection: Connection, rows: Rows, schema: str) -> Iterator[Any]:
        def call(arguments: str, **values: Any) -> UUID:
            id = connection.scalar(text(f"SELECT {schema}.outbox_publish({arguments})"), values)
            assert isinstance(id, UUID)
            return id

        yield call
        connection.rollback()

    @pytest.mark.parametrize(
        ("payload", "stored", "content_type"),
        [
            ("""'{"id": 42}'""", b'{"id": 42}', "application/json"),
            ("""'{"id":  42}'::text""", b'{"id":  42}', "application/json"),
            ("""'{"b": 1, "id":  42}'::jsonb""", b'{"b": 1, "id": 42}', "application/json"),
            ("'null'", b"null", "application/json"),
            (r"'\x00ff'::bytea", b"\x00\xff", "application/octet-stream"),
            ("'é'::text, content_type => 'text/plain'", "é".encode(), "text/plain"),
        ],
    )
    def test_takes_text_json_and_bytes(
        self, call: Any, connection: Connection, rows: Rows, payload: str, stored: bytes, content_type: str
    ) -> None:
        id = call(f"'order.created', {payload}, destination => 'orders'")
        connection.commit()
        row = rows.one(id)
        assert (row.payload, row.content_type, row.event_type) == (stored, content_type, "order.created")

    def test_takes_all_by_name(self, call: Any, connection: Connection, rows: Rows) -> None:
        given = UUID("0190a5d2-7c4e-7000-8000-000000000001")
        id = call(
            "event_type => 'order.created', payload => '{}', key => 'order:42', destination => 'orders', "
            "headers => '{\"tenant\": \"t1\"}', id => :id, deliver_at => '2030-01-01T00:00Z', "
            "aggregate_type => 'order', aggregate_id => '42'",
            id=given,
        )
        connection.commit()
        row = rows.one(id)
        assert id == given
        assert (row.key, row.headers, row.aggregate_type, row.aggregate_id) == (
            "order:42", {"tenant": "t1"}, "order", "42",
        )  # fmt: skip
        assert row.locked_until == datetime(2030, 1, 1, tzinfo=UTC)
        assert rows.state(id) == "scheduled"

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ("'', '{}', destination => 'orders'", "event_type must have 1 to 255"),
            ("NULL, '{}', destination => 'orders'", "event_type must have 1 to 255"),
            ("repeat('x', 256), '{}', destination => 'orders'", "event_type must have 1 to 255"),
            ("'a', '{}'", "destination is missing"),
            ("'a', '{}', destination => ''", "destination is missing"),
            ("'a', '{}', destination => 'orders', key => repeat('x', 256)", "key must be null or have 1 to 255"),
            ("'a', '{}', destination => 'orders', key => ''", "key must be null or have 1 to 255"),
            ("'a', '{}', destination => 'orders', deliver_at => 'infinity'", "a time in the years 1 to 9999"),
            ("'a', '{}', destination => 'orders', deliver_at => '-infinity'", "a time in the years 1 to 9999"),
            ("'a', '{}', destination => 'orders', deliver_at => '10000-01-01'", "a time in the years 1 to 9999"),
            ("'a', '{}', destination => 'orders', deliver_at => '0044-03-15 BC'", "a time in the years 1 to 9999"),
            ("'a', NULL::text, destination => 'orders'", "payload is null"),
            ("'a', NULL::jsonb, destination => 'orders'", "payload is null"),
            ("'a', NULL::bytea, destination => 'orders'", "payload is null"),
            ("'a', '{}', destination => 'orders', headers => '[]'", "headers must be a JSON object"),
            (
                "'a', '{}', destination => 'orders', headers => '{\"celery-message\": \"{}\"}'",
                "is for stored tasks only",
            ),
            ("'a', '{}', destination => 'orders', headers => NULL", "headers must be a JSON object"),
            ("'a', '{oops', destination => 'orders'", "invalid input syntax for type json"),
        ],
    )
    def test_refuses_messages_that_can_not_be_delivered(
        self, call: Any, rows: Rows, arguments: str, reason: str
    ) -> None:
        with pytest.raises(DBAPIError, match=reason):
            call(arguments)
        assert rows.hot() == []

    def test_makes_ids_of_version_7_in_order_of_time(self, call: Any, connection: Connection, rows: Rows) -> None:
        before = datetime.now(UTC) - timedelta(seconds=5)
        ids = [call("'a', '{}', destination => 'orders'") for _ in range(3)]
        ids += rows.insert(100)
        stamps = [UUID(str(id)).int >> 80 for id in ids]
        assert {UUID(str(id)).version for id in ids} == {7}
        assert {UUID(str(id)).variant for id in ids} == {"specified in RFC 4122"}
        assert stamps == sorted(stamps)
        assert before.timestamp() * 1000 < stamps[0] < (before + timedelta(seconds=60)).timestamp() * 1000
        assert len(set(ids)) == 103

    def test_is_claimed_only_once_committed(self, call: Any, connection: Connection, store: Store) -> None:
        id = call("'a', '{}', destination => 'orders'")
        assert store.claim({"orders": 10}, str(UUID(int=1))) == []
        connection.commit()
        assert [row.id for row in store.claim({"orders": 10}, str(UUID(int=2)))] == [str(id)]

    def test_a_rolled_back_message_is_never_claimed(self, call: Any, connection: Connection, store: Store) -> None:
        call("'a', '{}', destination => 'orders'")
        connection.rollback()
        assert store.claim({"orders": 10}, str(UUID(int=1))) == []


class TestOutboxAll:
    """The view for people."""

    @pytest.mark.parametrize(
        ("state", "columns"),
        [
            ("pending", {}),
            ("scheduled", {"locked_until": seconds_from_now(60)}),
            ("leased", {"locked_until": seconds_from_now(60), "lease": UUID(int=1)}),
            ("leased", {"locked_until": seconds_from_now(60), "lease": UUID(int=1), "attempts": 2, "begun": True}),
            ("pending", {"locked_until": seconds_from_now(-1), "lease": UUID(int=1)}),
            ("retrying", {"locked_until": seconds_from_now(60), "lease": UUID(int=1), "attempts": 2}),
            ("retrying", {"locked_until": seconds_from_now(60), "attempts": 2}),
            ("retrying", {"attempts": 1}),
            ("dead", {"status": "dead", "dead_at": seconds_from_now(0)}),
            ("handed over", {**HANDED, "locked_until": seconds_from_now(60)}),
            ("running", {**HANDED, "locked_until": seconds_from_now(60), "begun": True}),
            ("retrying", {**HANDED, "locked_until": seconds_from_now(-1), "begun": True}),
        ],
    )
    def test_shows_a_hot_row_in_its_state(self, rows: Rows, state: str, columns: dict[str, Any]) -> None:
        [id] = rows.insert(**columns)
        assert rows.state(id) == state

    def test_shows_every_state_of_a_message_that_is_sent(self, rows: Rows, store: Store) -> None:
        [id] = rows.insert()
        lease = str(UUID(int=1))
        seen = [rows.state(id)]
        [row] = store.claim({"orders": 1}, lease)
        seen.append(rows.state(id))
        bundle = Bundle("orders", lease, (Ticket(row.id, 0, row.event_type),))
        begun = store.begin(bundle)
        seen.append(rows.state(id))
        ticket = Ticket(id, begun[id].attempts, row.event_type)
        store.settle(lease, "orders", [Verdict(ticket, Step.SENT)])
        seen.append(rows.state(id))
        assert seen == ["pending", "leased", "leased", "sent"]

    @pytest.mark.parametrize(
        ("payload", "shown"),
        [
            (b'{"id": 42}', '{"id": 42}'),
            ("naïve 😀".encode(), "naïve 😀"),
            (b"", ""),
            (b"\xff\x00", r"\xff00"),
            (b"NUL \x00", r"\x4e554c2000"),
        ],
    )
    def test_shows_any_payload(self, rows: Rows, payload: bytes, shown: str) -> None:
        rows.insert(payload=payload)
        [row] = rows.shown()
        assert row.payload == shown

    def test_shows_a_lease_that_ran_out_as_pending_again(self, rows: Rows, new_store: Any) -> None:
        store = new_store(queue_lease=0.2)
        [id] = rows.insert()
        store.claim({"orders": 1}, str(UUID(int=1)))
        assert rows.state(id) == "leased"
        eventually(lambda: rows.state(id) == "pending")
