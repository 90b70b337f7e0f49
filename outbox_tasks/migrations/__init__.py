"""Makes the tables of this release: `sql/schema.sql`, in the caller's transaction, under a lock.

There is one version of the tables so far, and no migration. From the first release on there will be migrations.

From an application's own Alembic:

    from outbox_tasks import migrations

    def upgrade() -> None:
        migrations.upgrade(op.get_bind())

and in its env.py `context.configure(…, include_name=migrations.include_name)`.

In Django, `INSTALLED_APPS = ["outbox_tasks.django", …]` and `manage.py migrate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine.mock import MockConnection

from outbox_tasks.database import sql
from outbox_tasks.database.rights import HIDDEN, RELATIONS, Kind, functions, rights
from outbox_tasks.database.schema import VERSION, quoted, where
from outbox_tasks.errors import (
    ConfigurationError,
    InvalidArgument,
    SchemaMismatch,
    SchemaMissing,
    UnsupportedDatabase,
)
from outbox_tasks.migrations.connections import DjangoConnection, Runner, runner
from outbox_tasks.satellites import satellite
from outbox_tasks.settings import Settings

STYLE = {"DateStyle": "ISO, MDY", "TimeZone": "UTC", "standard_conforming_strings": "on"}
"""Settings that the script relies on. A session or a role may have others."""

NOT_UTF8 = (
    "it is in {}, which can't hold every message. Make a database in UTF8 for the outbox: CREATE DATABASE … ENCODING "
    "'UTF8' TEMPLATE template0. An application can keep its own, and publish through a feed in it: see docs/feeds.md"
)

OURS = re.compile(rf"outbox_(feed|{'|'.join(RELATIONS)}|(messages|journal)_\d+)")
"""The names of our tables and their partitions."""


def upgrade(connection: Connection | DjangoConnection | MockConnection, schema: str | None = None) -> bool:
    """Make the tables in `schema`, if they are not there, inside the connection's transaction.

    Without `schema` it takes the setting `database_schema`, or else the first schema of the search_path. With Alembic's
    connection for `--sql`, it writes into Alembic's script.

    Returns whether it made them. Many hosts may run it at once: the others wait for the first. Raises `SchemaMismatch`
    if there are tables of another version, `UnsupportedDatabase`, or `ConfigurationError` for an
    odd name.
    """
    schema = schema or Settings().database_schema
    if isinstance(connection, MockConnection):
        from alembic import op

        op.get_context().impl.static_output(script(schema))
        return True
    run = runner(connection)
    schema = _checked(schema or str(run.scalar("SELECT current_schema()")))
    run.scalar("SELECT pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || :schema, 0))", schema=schema)
    if (encoding := run.scalar("SELECT current_setting('server_encoding')")) != "UTF8":
        raise UnsupportedDatabase(reason=NOT_UTF8.format(encoding))
    if run.scalar("SELECT to_regclass(:name)::text", name=f"{quoted(schema)}.outbox_versions"):
        _check(run, schema)
        return False
    run.script(script(schema))
    return True


def upgrade_feed(connection: Connection | DjangoConnection, schema: str | None = None) -> None:
    """Make the tables `outbox_feed` and `outbox_inbox`, if they are missing, in the connection's transaction.

    `schema`: where; None: where the connection makes tables. MySQL and MariaDB commit before and after each statement
    that makes a table. Raises `UnsupportedDatabase`.
    """
    satellite("feeds").upgrade(connection, schema)


def _check(run: Runner, schema: str) -> None:
    """Raises `SchemaMismatch` unless the tables are of this version. Tables without rows come from a dump without data,
    or somebody has emptied them: their comment says the version. Note it again, and which days there are."""
    place = quoted(schema)
    noted = run.scalar(f"SELECT max(version)::text FROM {place}.outbox_versions")
    version = noted or run.scalar(
        "SELECT obj_description(to_regclass(:name), 'pg_class')", name=f"{place}.outbox_versions"
    )
    if version != str(VERSION):
        raise SchemaMismatch(where=where(schema), found=version or "unknown", needed=VERSION)
    if not noted:
        note = f"INSERT INTO {place}.outbox_versions (version) VALUES ({VERSION});"
        run.script(f"{note} SELECT {place}.outbox_day_turn(2)")


def script(schema: str | None = None) -> str:
    """The SQL that makes the tables, where they are not there. Without `schema`: in the first of the search_path."""
    place = _literal(_checked(schema)) if schema else "current_schema()"
    kept = (*STYLE, "search_path")
    return SCRIPT.format(
        place=place,
        version=VERSION,
        before="".join(f"\n  {name}_before text := current_setting('{name}');" for name in kept),
        set_to="".join(f"\n    PERFORM set_config('{name}', '{value}', true);" for name, value in STYLE.items()),
        script=sql.schema(),
        set_back="".join(f"\n    PERFORM set_config('{name}', {name}_before, true);" for name in kept),
    )


SCRIPT = """\
DO $outbox_tasks$
DECLARE
  place text := {place};{before}
BEGIN
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'The outbox needs a database in UTF8. This one is in %', current_setting('server_encoding');
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || place, 0));
  IF to_regnamespace(quote_ident(place)) IS NULL THEN
    EXECUTE format('CREATE SCHEMA %I', place);
  END IF;
  IF to_regclass(format('%I.outbox_versions', place)) IS NULL THEN{set_to}
    EXECUTE replace($outbox_script${script}$outbox_script$, ':schema', quote_ident(place));
    EXECUTE format('INSERT INTO %I.outbox_versions (version) VALUES ({version})', place);
    EXECUTE format('COMMENT ON TABLE %I.outbox_versions IS %L', place, '{version}');{set_back}
  END IF;
END
$outbox_tasks$;"""


def grant(connection: Connection | DjangoConnection, kind: Kind, role: str, schema: str | None = None) -> None:
    """Let the database role `role` do with the tables in `schema` what this kind of role does, and nothing else.

    Raises `InvalidArgument`."""
    run = runner(connection)
    if run.scalar("SELECT to_regrole(quote_ident(:role))::text", role=role) is None:
        rule = "is no role of this database. Create it first, for example with CREATE ROLE … LOGIN, or correct the name"
        raise InvalidArgument(argument="role", value=role, rule=rule)
    for statement in grants(connection, kind, role, schema):
        run.script(statement)


def grants(
    connection: Connection | DjangoConnection, kind: Kind, role: str, schema: str | None = None
) -> Iterator[str]:
    """The statements of `grant`."""
    run = runner(connection)
    schema = schema or Settings().database_schema or str(run.scalar("SELECT current_schema()"))
    place, to = quoted(schema), quoted(role)
    yield f"GRANT USAGE ON SCHEMA {place} TO {to};"
    for relation, privileges in rights(kind):
        if privileges:
            shown = _shown(run, f"{place}.{relation}") if kind == "reader" else ""
            on = f"SEQUENCE {place}.{relation}" if relation.endswith("_seq") else f"{place}.{relation}"
            yield f"GRANT {', '.join(privileges)}{shown} ON {on} TO {to};"
    names = ", ".join(map(_literal, functions(kind)))
    called = run.scalar(
        "SELECT string_agg(oid::regprocedure::text, ', ' ORDER BY oid::regprocedure::text) FROM pg_proc "
        f"WHERE pronamespace = to_regnamespace(:name) AND proname IN ({names})",
        name=place,
    )
    if called is None:
        raise SchemaMissing(where=where(schema))
    yield f"GRANT EXECUTE ON FUNCTION {called} TO {to};"


def _shown(run: Runner, relation: str) -> str:
    """The columns that a reader may see, if there are others."""
    hidden = ", ".join(map(_literal, sorted(HIDDEN)))
    columns = run.scalar(
        "SELECT CASE WHEN count(*) FILTER (WHERE hidden) > 0 THEN "
        "' (' || string_agg(quote_ident(name), ', ' ORDER BY number) FILTER (WHERE NOT hidden) || ')' END FROM "
        f"(SELECT attname AS name, attnum AS number, attname IN ({hidden}) AS hidden FROM pg_attribute "
        "WHERE attrelid = to_regclass(:relation) AND attnum > 0 AND NOT attisdropped) AS columns",
        relation=relation,
    )
    return columns or ""


def include_name(name: str | None, type_: str, parent_names: Any = None) -> bool:
    """For Alembic's `context.configure(include_name=…)`. It is false for our tables; otherwise autogenerate would drop
    them."""
    return type_ != "table" or name is None or not OURS.fullmatch(name)


def _checked(schema: str) -> str:
    """The name of a schema. Refuses characters with which it could leave the quotes around it in the scripts."""
    if re.search(r"['%:$\\\x00-\x1f]", schema):
        rule = "the tables can't be made in a schema with ' % : $ \\ or a control character in its name"
        raise ConfigurationError(setting="database_schema", value=schema, rule=rule)
    return schema


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
