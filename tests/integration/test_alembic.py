"""The outbox's tables in an application's own Alembic, by the recipe of docs/how-to/alembic.md."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, inspect

from outbox_tasks import migrations
from outbox_tasks.database.schema import VERSION
from outbox_tasks.operating import days
from outbox_tasks.relay.store import Store
from tests.integration.own_database import Place, own_database

ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from outbox_tasks import migrations

metadata = MetaData()
Table("orders", metadata, Column("id", Integer, primary_key=True))
options = {"target_metadata": metadata, "include_name": migrations.include_name, "include_schemas": INCLUDE_SCHEMAS}
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(context.config.attributes["url"])
    with engine.connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""

REVISION = """
import sqlalchemy as sa
from alembic import op
from outbox_tasks import migrations

revision, down_revision = "{own}", {before!r}

def upgrade():
    {also}
    migrations.upgrade(op.get_bind())

def downgrade():
    pass
"""


class Application:
    """Has an Alembic, and two revisions that bring the outbox's tables up to date."""

    def __init__(self, place: Place, directory: Path, *, include_schemas: bool) -> None:
        self.place = place
        self.script = io.StringIO()
        (directory / "versions").mkdir()
        (directory / "env.py").write_text(ENV.replace("INCLUDE_SCHEMAS", str(include_schemas)))
        orders = 'op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))'
        for own, before, also in (("one", None, orders), ("two", "one", "pass")):
            (directory / "versions" / f"{own}.py").write_text(REVISION.format(own=own, before=before, also=also))
        (directory / "script.py.mako").write_text("${upgrades if upgrades else 'pass'}")
        self.config = Config(output_buffer=self.script, stdout=io.StringIO())
        self.config.set_main_option("script_location", str(directory))
        self.config.set_main_option("path_separator", "os")
        self.config.attributes["url"] = place.engine.url

    def tables(self, schema: str) -> set[str]:
        return set(inspect(self.place.engine).get_table_names(schema=schema))


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as made:
        yield made


# Where it skips all tables of a schema, Alembic reads the columns of each.
@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
@pytest.mark.parametrize("schema", [None, "Outbox"])
def test_the_tables_are_made_where_the_settings_say_and_are_not_proposed_to_be_dropped(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str | None
) -> None:
    if schema:
        monkeypatch.setenv("OUTBOX_DATABASE_SCHEMA", schema)
    application = Application(place, tmp_path, include_schemas=bool(schema))
    command.upgrade(application.config, "head")
    assert "outbox_messages" in application.tables(schema or "public")
    assert {"orders", "alembic_version"} <= application.tables("public")
    command.check(application.config)


def test_a_script_makes_the_same_tables_and_may_run_twice(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_DATABASE_SCHEMA", "Outbox")
    application = Application(place, tmp_path, include_schemas=False)
    command.upgrade(application.config, "head", sql=True)
    script = application.script.getvalue()
    place.run(script)
    store = Store.connect(place.settings(database_schema="Outbox"))
    try:
        store.check_version()
        assert days.turn(store) == 0
    finally:
        store.close()
    ours = script[script.index("DO $outbox_tasks$") : script.rindex("$outbox_tasks$;") + len("$outbox_tasks$;")]
    ours = "\n".join(part for part in ours.split("\n\n") if "alembic_version" not in part)
    place.run(ours)
    assert place.ask('SELECT version FROM "Outbox".outbox_versions') == VERSION


@pytest.mark.parametrize("name", ["outbox_inbox_of_shop", "my_outbox_feed", "outbox_messages_archive", None])
def test_a_table_of_the_application_is_not_overlooked(name: str | None) -> None:
    assert migrations.include_name(name, "table")
    assert not migrations.include_name("outbox_messages_3", "table")
    assert migrations.include_name("outbox_messages_3", "index")
