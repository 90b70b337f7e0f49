"""Creating and upgrading the tables: numbered SQL files, each run once, in order, under a lock.

From an application's own Alembic:

    from outbox_tasks import migrations

    def upgrade() -> None:
        migrations.upgrade(op.get_bind())

In Django, `INSTALLED_APPS = ["outbox_tasks.django", …]` and `manage.py migrate`.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Any, Protocol

from sqlalchemy import Connection, text
from sqlalchemy.util import await_only

from outbox_tasks.errors import SchemaTooNew
from outbox_tasks.schema import VERSION


class DjangoConnection(Protocol):
    """One of Django's database connections."""

    def cursor(self) -> Any: ...


def migrations() -> dict[int, str]:
    """The text of every migration, by its number."""
    files = (f for f in resources.files(__name__).iterdir() if f.name.endswith(".sql"))
    return {int(f.name[:4]): f.read_text(encoding="utf-8") for f in sorted(files, key=lambda f: f.name)}


def upgrade(connection: Connection | DjangoConnection, schema: str | None = None, *, to: int = VERSION) -> list[int]:
    """Bring the tables in `schema` up to version `to`, inside the connection's transaction.

    Returns the versions it applied: none when the tables were up to date. Many hosts may run it at once,
    the others wait for the first. Raises `SchemaTooNew`.
    """
    run = _Alchemy(connection) if isinstance(connection, Connection) else _Django(connection)
    if schema is None:
        schema = str(run.scalar("SELECT current_schema()"))
    quoted = str(run.scalar("SELECT quote_ident(:name)", name=schema))
    run.scalar("SELECT pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || :schema, 0))", schema=schema)
    if not run.scalar("SELECT to_regnamespace(:name)::text", name=quoted):
        run.script(f"CREATE SCHEMA {quoted}")
    run.script(
        f"CREATE TABLE IF NOT EXISTS {quoted}.outbox_versions "
        "(version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    found = run.scalar(f"SELECT max(version) FROM {quoted}.outbox_versions") or 0
    if found > VERSION:
        raise SchemaTooNew(found=found, needed=VERSION)
    applied = [version for version in migrations() if found < version <= to]
    for version in applied:
        run.script(_filled_in(migrations()[version], schema, quoted))
        run.script(f"INSERT INTO {quoted}.outbox_versions (version) VALUES ({version})")
    return applied


def _filled_in(script: str, schema: str, quoted: str) -> str:
    literal = "'" + schema.replace("'", "''") + "'"
    script = re.sub(r":schema_literal\b", lambda _: literal, script)
    return re.sub(r":schema\b", lambda _: quoted, script)


class _Alchemy:
    """Runs SQL on a SQLAlchemy connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def scalar(self, sql: str, **values: str) -> Any:
        return self._connection.scalar(text(sql.replace("::text", "\\:\\:text")), values)

    def script(self, sql: str) -> None:
        """Without parameters: the driver then takes several statements and leaves % alone."""
        if self._connection.dialect.driver == "asyncpg":  # whose cursors prepare every statement
            await_only(self._connection.connection.driver_connection.execute(sql))  # type: ignore[union-attr]
        else:
            self._connection.exec_driver_sql(sql, execution_options={"no_parameters": True})


class _Django:
    """Runs SQL on one of Django's connections."""

    def __init__(self, connection: DjangoConnection) -> None:
        self._connection = connection

    def scalar(self, sql: str, **values: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql), values)
            return cursor.fetchone()[0]

    def script(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
