"""Creating and upgrading the tables: numbered SQL files, each run once, in order, under a lock.

From an application's own Alembic:

    from outbox_tasks import migrations

    def upgrade() -> None:
        migrations.upgrade(op.get_bind())
"""

from __future__ import annotations

import re
from importlib import resources

from sqlalchemy import Connection, text

from outbox_tasks.errors import SchemaTooNew
from outbox_tasks.schema import VERSION


def migrations() -> dict[int, str]:
    """The text of every migration, by its number."""
    files = (f for f in resources.files(__name__).iterdir() if f.name.endswith(".sql"))
    return {int(f.name[:4]): f.read_text(encoding="utf-8") for f in sorted(files, key=lambda f: f.name)}


def upgrade(connection: Connection, schema: str | None = None, *, to: int = VERSION) -> list[int]:
    """Bring the tables in `schema` up to version `to`, inside the connection's transaction.

    Returns the versions it applied: none when the tables were up to date. Many hosts may run it at once,
    the others wait for the first. Raises `SchemaTooNew`.
    """
    if schema is None:
        schema = str(connection.scalar(text("SELECT current_schema()")))
    quoted = connection.dialect.identifier_preparer.quote(schema)
    connection.execute(
        text("SELECT pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || :schema, 0))"), {"schema": schema}
    )
    if not connection.scalar(text("SELECT to_regnamespace(:name)"), {"name": quoted}):
        connection.exec_driver_sql(f"CREATE SCHEMA {quoted}")
    connection.exec_driver_sql(
        f"CREATE TABLE IF NOT EXISTS {quoted}.outbox_versions "
        "(version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    found = connection.scalar(text(f"SELECT max(version) FROM {quoted}.outbox_versions")) or 0
    if found > VERSION:
        raise SchemaTooNew(found=found, needed=VERSION)
    applied = [version for version in migrations() if found < version <= to]
    for version in applied:
        _run(connection, migrations()[version], schema, quoted)
        connection.execute(text(f"INSERT INTO {quoted}.outbox_versions (version) VALUES (:v)"), {"v": version})
    return applied


def _run(connection: Connection, script: str, schema: str, quoted: str) -> None:
    literal = "'" + schema.replace("'", "''") + "'"
    script = re.sub(r":schema_literal\b", lambda _: literal, script)
    script = re.sub(r":schema\b", lambda _: quoted, script)
    # Straight to the driver, without parameters: psycopg then takes several statements and leaves % alone.
    cursor = connection.connection.cursor()
    try:
        cursor.execute(script)
    finally:
        cursor.close()
