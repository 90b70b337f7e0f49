"""What the doctor finds in the tables: brought about on a real PostgreSQL, and gone when the remedy was taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from outbox_tasks.database.schema import VERSION
from outbox_tasks.operating.doctor import Severity
from outbox_tasks.operating.retention import maintain
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import MakeSettings, Rows, eventually, seconds_from_now
from tests.integration.doctoring import Sql, found, sql


@pytest.fixture
def run(rows: Rows, engine: Engine, schema: str) -> Sql:
    """Runs statements over migrated tables."""
    return sql(engine, schema)


OF_TABLES = (
    "schema_missing", "schema_old", "schema_new", "rights_missing", "index_missing", "index_invalid", "trigger_missing",
    "partition_missing", "partition_wrong", "default_partition", "autovacuum_off", "dead_rows", "table_options",
)  # fmt: skip


def test_new_tables_have_no_finding(settings: MakeSettings, run: Sql) -> None:
    assert found(settings(), *OF_TABLES) == {}


def test_missing_tables(settings: MakeSettings, schema: str) -> None:
    missing = found(settings())["schema_missing"]
    assert missing.severity is Severity.ERROR
    assert schema in missing.fact
    assert missing.remedy.startswith("outbox-tasks init")


@pytest.mark.parametrize(("version", "code"), [(VERSION - 1, "schema_old"), (VERSION + 1, "schema_new")])
def test_tables_of_another_release(settings: MakeSettings, run: Sql, version: int, code: str) -> None:
    run(f"DELETE FROM outbox_versions WHERE version >= {min(version + 1, VERSION)}")
    run(f"INSERT INTO outbox_versions VALUES ({version}) ON CONFLICT DO NOTHING")
    assert f"version {version}" in found(settings(), code)[code].fact


def test_a_missing_index_is_made_by_the_statement_that_is_given(settings: MakeSettings, run: Sql) -> None:
    run("DROP INDEX outbox_messages_due", "DROP INDEX outbox_messages_groups", "DROP INDEX outbox_inbox_received_at")
    remedies = []
    while missing := found(settings(), "index_missing"):
        assert missing["index_missing"].severity is Severity.ERROR
        remedies.append(missing["index_missing"].remedy)
        run(remedies[-1])
    assert len(remedies) == 3
    assert all("CREATE INDEX CONCURRENTLY" in remedy for remedy in remedies)


def test_messages_are_not_counted_without_the_indexes_for_that(settings: MakeSettings, run: Sql, rows: Rows) -> None:
    rows.insert(1, status="dead", dead_at=seconds_from_now(-1))
    assert found(settings(), "dead_letters").keys() == {"dead_letters"}
    run("DROP INDEX outbox_messages_dead")
    assert found(settings(), "dead_letters").keys() == {"index_missing"}


def test_an_index_of_the_archive_can_t_be_made_concurrently(settings: MakeSettings, run: Sql) -> None:
    run("DROP INDEX outbox_archive_id")
    run(found(settings(), "index_missing")["index_missing"].remedy)
    assert found(settings(), "index_missing") == {}


def test_an_index_of_other_columns_counts_as_missing(settings: MakeSettings, run: Sql) -> None:
    run(
        "DROP INDEX outbox_messages_due",
        "CREATE INDEX outbox_messages_due ON outbox_messages (destination, locked_until)",
    )
    other = found(settings(), "index_missing")["index_missing"]
    assert "other columns" in other.fact
    run(*other.remedy.splitlines())
    assert found(settings(), "index_missing") == {}


def test_an_index_whose_build_was_broken_off(settings: MakeSettings, run: Sql, rows: Rows) -> None:
    rows.insert(2)
    run("DROP INDEX outbox_messages_dead")
    with pytest.raises(DBAPIError, match="could not create unique index"):
        run("CREATE UNIQUE INDEX CONCURRENTLY outbox_messages_dead ON outbox_messages (destination, priority)")
    invalid = found(settings(), "index_invalid")["index_invalid"]
    assert "outbox_messages_dead" in invalid.fact
    assert invalid.remedy.startswith("REINDEX INDEX CONCURRENTLY")


def test_a_disabled_trigger(settings: MakeSettings, run: Sql) -> None:
    run("ALTER TABLE outbox_messages DISABLE TRIGGER outbox_keep_order")
    lost = found(settings(), "trigger_missing")["trigger_missing"]
    assert "disabled: outbox_keep_order." in lost.fact
    run(lost.remedy.splitlines()[0])
    assert found(settings(), "trigger_missing") == {}


def test_a_day_without_a_partition(settings: MakeSettings, run: Sql, store: Store) -> None:
    run(
        "DO $$ BEGIN EXECUTE 'DROP TABLE outbox_archive_' || to_char(now() AT TIME ZONE 'UTC' + interval '1 day', "
        "'YYYYMMDD'); END $$"
    )
    missing = found(settings(), "partition_missing")["partition_missing"]
    assert missing.remedy.startswith("outbox-tasks maintain")
    maintain(store)
    assert found(settings(), "partition_missing") == {}


ARCHIVED = (
    "INSERT INTO outbox_archive (seq, id, event_type, destination, payload, content_type, headers, attempts, "
    "created_at, state, finished_at) "
    "SELECT 1, outbox_uuid7(), 'a', 'orders', '', '', '{}', 1, now(), 'sent', now() - interval "
)


def on_today(statement: str) -> str:
    """A statement about today's partition: `{}` is the day, as its name ends."""
    today = "to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')"
    return f"DO $do$ BEGIN EXECUTE replace($${statement}$$, '{{}}', {today}); END $do$"


def test_a_day_that_has_filled_the_default_partition_gets_its_own(
    settings: MakeSettings, run: Sql, store: Store, rows: Rows
) -> None:
    run(on_today("DROP TABLE outbox_archive_{}"), f"{ARCHIVED} '0 days'", f"{ARCHIVED} '3 days'")
    assert found(settings(), *OF_TABLES).keys() == {"partition_missing", "default_partition"}
    done = maintain(store)
    assert (done.made, done.failed) == (1, [])
    assert found(settings(), *OF_TABLES) == {}
    assert len(rows.archived()) == 2


OTHER_BOUNDS = """
ALTER TABLE outbox_archive DETACH PARTITION outbox_archive_{};
DELETE FROM outbox_archive_{};
ALTER TABLE outbox_archive ATTACH PARTITION outbox_archive_{} FOR VALUES FROM ('{} 00:10:00+00') TO ('{} 23:50:00+00')
"""


@pytest.mark.parametrize("statement", ["ALTER TABLE outbox_archive DETACH PARTITION outbox_archive_{}", OTHER_BOUNDS])
def test_a_table_that_is_only_named_like_a_partition(
    settings: MakeSettings, run: Sql, store: Store, rows: Rows, statement: str
) -> None:
    run(f"{ARCHIVED} '0 days'", on_today(statement))
    wrong = found(settings(), *OF_TABLES)
    assert {"partition_missing", "partition_wrong"} <= wrong.keys()
    maintain(store)
    *statements, then, _ = found(settings(), "partition_wrong")["partition_wrong"].remedy.splitlines()
    assert then == "outbox-tasks maintain"
    run(*statements)
    assert maintain(store).failed == []
    assert found(settings(), *OF_TABLES) == {}
    assert len(rows.archived()) == (statement is not OTHER_BOUNDS)


def test_rows_in_the_default_partition(settings: MakeSettings, run: Sql, store: Store) -> None:
    run(f"{ARCHIVED} '90 days'")
    assert "holds 1 row," in found(settings(), "default_partition")["default_partition"].fact
    maintain(store)
    assert found(settings(), "default_partition") == {}


@pytest.mark.parametrize("option", ["autovacuum_enabled = false", "autovacuum_enabled = off"])
def test_a_table_without_autovacuum(settings: MakeSettings, run: Sql, option: str) -> None:
    run(f"ALTER TABLE outbox_messages SET ({option})")
    off = found(settings(), "autovacuum_off")["autovacuum_off"]
    assert off.fact == "Autovacuum is off for outbox_messages."
    run(off.remedy)
    assert found(settings(), "autovacuum_off") == {}


def test_dead_rows_that_nobody_removes(settings: MakeSettings, run: Sql, rows: Rows) -> None:
    run("ALTER TABLE outbox_messages SET (autovacuum_enabled = false, autovacuum_vacuum_threshold = 10)")
    rows.insert(200)
    run("DELETE FROM outbox_messages")
    few = settings(stale_after=0.001)
    dead = eventually(lambda: found(few, "dead_rows").get("dead_rows"))
    assert "has 200 dead rows" in dead.fact
    assert "never" in dead.fact
    run(dead.remedy.partition(";")[0])
    eventually(lambda: not found(few, "dead_rows"))


def test_dead_rows_that_a_vacuum_has_left(settings: MakeSettings, run: Sql, rows: Rows, engine: Engine) -> None:
    """As under an open snapshot: autovacuum comes each minute, and removes nothing."""
    run("ALTER TABLE outbox_messages SET (autovacuum_enabled = false, autovacuum_vacuum_threshold = 1)")
    rows.insert(200)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader, reader.begin():
        reader.execute(text("SELECT pg_current_snapshot()"))
        run("DELETE FROM outbox_messages", "VACUUM outbox_messages")
        assert "has 200 dead rows" in eventually(lambda: found(settings(), "dead_rows").get("dead_rows")).fact
    run("VACUUM outbox_messages")
    eventually(lambda: not found(settings(), "dead_rows"))


def test_lost_and_changed_table_options(settings: MakeSettings, run: Sql) -> None:
    run("ALTER TABLE outbox_messages SET (fillfactor = 90)")
    assert found(settings(), "table_options")["table_options"].severity is Severity.NOTE
    run(
        "ALTER TABLE outbox_messages SET (fillfactor = 45)",
        "ALTER TABLE outbox_messages RESET (autovacuum_vacuum_threshold)",
    )
    lost = found(settings(), "table_options")["table_options"]
    assert lost.severity is Severity.WARNING
    run(lost.remedy)
    assert found(settings(), "table_options") == {}


class TestRights:
    @pytest.fixture
    def role(self, engine: Engine, rows: Rows, schema: str) -> Iterator[str]:
        """A role that may log in and look into the schema, and nothing else."""
        name = f"{schema}_role"
        with engine.begin() as connection:
            connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'"))
            connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {name}"))
        yield name
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {name}"))
            connection.execute(text(f"DROP ROLE {name}"))

    @pytest.fixture
    def as_role(self, settings: MakeSettings, engine: Engine, role: str) -> Settings:
        url = engine.url.set(drivername="postgresql", username=role, password="secret")
        return settings(database_url=url.render_as_string(hide_password=False))

    def test_are_granted_by_the_statements_that_are_given(self, as_role: Settings, run: Sql) -> None:
        missing = found(as_role, "rights_missing")["rights_missing"]
        assert missing.severity is Severity.ERROR
        assert "secret" not in str(missing)
        run(*missing.remedy.splitlines())
        assert found(as_role, "rights_missing") == {}
        assert found(as_role, *OF_TABLES) == {}

    def test_the_owner_has_all(self, as_role: Settings, run: Sql, engine: Engine, role: str) -> None:
        run(f"GRANT {engine.url.username} TO {role}")
        assert found(as_role, "rights_missing") == {}

    def test_missing_on_the_schema(self, as_role: Settings, run: Sql, schema: str, role: str) -> None:
        run(f"REVOKE USAGE ON SCHEMA {schema} FROM {role}")
        assert "rights_missing" in found(as_role)
