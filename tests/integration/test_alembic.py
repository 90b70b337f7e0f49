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
options = {"target_metadata": metadata, "include_name": migrations.include_name, "include_schemas": True}
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


@pytest.fixture
def place(engine: Engine) -> Iterator[Place]:
    with own_database(engine) as made:
        yield made


@pytest.fixture
def config(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Of an application that has two revisions which bring the outbox's tables up to date, in a schema of their own."""
    monkeypatch.setenv("OUTBOX_DATABASE_SCHEMA", "Outbox")
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV)
    orders = 'op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))'
    for own, before, also in (("one", None, orders), ("two", "one", "pass")):
        (tmp_path / "versions" / f"{own}.py").write_text(REVISION.format(own=own, before=before, also=also))
    (tmp_path / "script.py.mako").write_text("${upgrades if upgrades else 'pass'}")
    made = Config(output_buffer=io.StringIO(), stdout=io.StringIO())
    made.set_main_option("script_location", str(tmp_path))
    made.set_main_option("path_separator", "os")
    made.attributes["url"] = place.engine.url
    return made


# Where it skips all tables of a schema, Alembic reads the columns of each.
@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_the_tables_are_made_where_the_settings_say_and_are_not_proposed_to_be_dropped(
    place: Place, config: Config
) -> None:
    """docs/how-to/alembic.md shows it in the default schema, and is run."""
    command.upgrade(config, "head")
    assert inspect(place.engine).has_table("outbox_messages", "Outbox")
    assert {"orders", "alembic_version"} <= set(inspect(place.engine).get_table_names())
    command.check(config)


def test_a_script_makes_the_same_tables_and_may_run_twice(place: Place, config: Config) -> None:
    command.upgrade(config, "head", sql=True)
    script = config.output_buffer.getvalue()
    place.run(script)
    store = Store.connect(place.settings(database_schema="Outbox"))
    try:
        store.check_version()
        assert days.turn(store) == 0
    finally:
        store.close()
    ours = script[script.index("DO $outbox_tasks$") : script.rindex("$outbox_tasks$;") + len("$outbox_tasks$;")]
    place.run("\n".join(part for part in ours.split("\n\n") if "alembic_version" not in part))
    assert place.ask('SELECT version FROM "Outbox".outbox_versions') == VERSION


def test_a_table_of_the_application_is_not_overlooked() -> None:
    for name in ("outbox_inbox_of_shop", "my_outbox_feed", "outbox_messages_archive", None):
        assert migrations.include_name(name, "table")
    assert not migrations.include_name("outbox_messages_3", "table")
    assert migrations.include_name("outbox_messages_3", "index")
