"""Databases with names and defaults that are not ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC

import pytest
from sqlalchemy import Engine, text

from outbox_tasks.migrations import upgrade
from outbox_tasks.operating.days import days
from outbox_tasks.operating.retention import maintain
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import Rows, eventually
from tests.integration.doctoring import found
from tests.integration.own_database import Place, own_database, through_the_pipe
from tests.integration.test_problems_tables import OF_TABLES


@pytest.fixture(scope="module")
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as made:
        yield made


@pytest.mark.parametrize("schema", ["Outbox", "user"])
def test_a_schema_may_have_any_name(place: Place, schema: str) -> None:
    settings = place.settings(database_schema=schema)
    made = place.command("init", settings=settings)
    assert made.exit_code == 0, made.output
    through_the_pipe(settings, Rows(place.engine, schema))
    shown = place.command("list", "--by", "error", settings=settings)
    assert shown.exit_code == 0
    assert "http_400" in shown.output
    redriven = place.command("redrive", "--all", "--yes", settings=settings)
    assert redriven.exit_code == 0, redriven.output
    assert found(settings, *OF_TABLES) == {}
    index = f'"{schema}".outbox_audit_at'
    place.run(f"DROP INDEX {index}")
    place.run(found(settings, "index_missing")["index_missing"].remedy)
    assert found(settings, "index_missing") == {}


DEFAULTS = {
    "datestyle": "German", "intervalstyle": "sql_standard", "timezone": "Pacific/Guam", "bytea_output": "escape",
    "default_transaction_isolation": "serializable", "default_transaction_read_only": "on", "lock_timeout": "1ms",
    "idle_session_timeout": "200ms",
}  # fmt: skip


@pytest.fixture(scope="module")
def peculiar(place: Place) -> Settings:
    """A relay, whose role has other defaults than ours for all that we rely on, and has made the tables."""
    before_19 = int(place.ask("SHOW server_version_num")) < 190_000
    defaults = DEFAULTS | ({"standard_conforming_strings": "off"} if before_19 else {})
    place.run(
        f"CREATE ROLE \"{place.role}\" LOGIN PASSWORD 'secret'",
        f'GRANT "{place.engine.url.username}" TO "{place.role}"',
        *(f"ALTER ROLE \"{place.role}\" SET {name} = '{value}'" for name, value in defaults.items()),
        "CREATE SCHEMA peculiar",
    )
    settings = place.settings(database_url=place.url_of(place.role), database_schema="peculiar")
    made = place.command("init", settings=settings)
    assert made.exit_code == 0, made.output
    return settings


def test_the_defaults_of_a_role_change_nothing(place: Place, peculiar: Settings) -> None:
    rows = Rows(place.engine, "peculiar")
    through_the_pipe(peculiar, rows)
    [id] = [str(row.id) for row in rows.hot()]
    for arguments in (["list"], ["list", "--json"], ["show", id], ["status"], ["list", "--by", "key"], ["audit"]):
        shown = place.command(*arguments, settings=peculiar)
        assert shown.exit_code == 0, shown.output
    assert place.command("health", "--json", settings=peculiar).stdout.startswith("{")
    assert found(peculiar, "session_settings", "database_read_only", *OF_TABLES) == {}


def test_days_are_those_of_utc(place: Place, peculiar: Settings) -> None:
    """By whatever session: an application's own, with its zone and style, may have made the tables."""
    zone = "SET LOCAL timezone = 'Pacific/Guam'; SET LOCAL datestyle = 'SQL, DMY'"
    with place.engine.begin() as connection:
        connection.exec_driver_sql(zone)
        upgrade(connection, "guam")
        assert connection.scalar(text("SELECT current_setting('DateStyle')")) == "SQL, DMY"
    with closing(Store.connect(peculiar.replace(database_schema="guam"))) as store:
        [day] = days(store)
        assert day.date == day.began_at.astimezone(UTC).date()
        assert maintain(store).failed == []


def test_a_session_without_our_settings_is_told_what_to_set(place: Place, peculiar: Settings) -> None:
    """As behind a pooler that drops them."""
    bare = peculiar.replace(statement_timeout=0)
    refused = found(bare, "database_read_only")["database_read_only"]
    place.run(refused.remedy.partition(": ")[2])
    lost = eventually(lambda: found(bare, "session_settings").get("session_settings"))
    assert "default_transaction_isolation" in lost.fact
    place.run(*lost.remedy.splitlines())
    assert found(bare, "session_settings", "database_read_only") == {}
    through_the_pipe(bare, Rows(place.engine, "peculiar"))
