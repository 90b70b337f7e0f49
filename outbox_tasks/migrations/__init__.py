"""Creating and upgrading the tables: `sql/schema.sql` makes them, and numbered SQL files change those of earlier
releases, each once, in order, under a lock.

A version has a file `NNN_pre_what.sql`: earlier releases work with what it makes. It may also have `NNN_post_what.sql`,
for what they don't work with. `finish` runs that, when they are gone.

From an application's own Alembic:

    from outbox_tasks import migrations

    def upgrade() -> None:
        migrations.upgrade(op.get_bind())

and in its env.py `context.configure(…, include_name=migrations.include_name)`.

In Django, `INSTALLED_APPS = ["outbox_tasks.django", …]` and `manage.py migrate`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal

from sqlalchemy import Connection
from sqlalchemy.engine.mock import MockConnection

from outbox_tasks import sql
from outbox_tasks.database.rights import HIDDEN, RELATIONS, Kind, functions, rights
from outbox_tasks.database.schema import FIRST, VERSION, quoted, where
from outbox_tasks.errors import (
    ConfigurationError,
    SchemaEmptied,
    SchemaLocked,
    SchemaMissing,
    SchemaOutgrown,
    SchemaTooNew,
    UnknownRole,
    UnsupportedEncoding,
)
from outbox_tasks.migrations.connections import DjangoConnection, Runner, runner
from outbox_tasks.migrations.feeds import upgrade_feed as upgrade_feed
from outbox_tasks.settings import Settings

FOLDER: Traversable = resources.files(__name__)
"""Where the numbered files are."""

STYLE = {"DateStyle": "ISO, MDY", "TimeZone": "UTC", "standard_conforming_strings": "on", "lock_timeout": "2s"}
"""Settings that the scripts rely on. A session or a role may have others. Whoever writes messages queues behind a
script that waits for a lock, so it does not wait for long."""

TRIES, PAUSE = 15, 2.0
"""How often the scripts are tried while others hold their locks, and seconds between two tries: writers go on then."""

LOCKED = "55P03"
"""SQLSTATE of a lock that was not to be had in time."""

HOLDERS = """
SELECT string_agg(holder, '; ') FROM (
  SELECT DISTINCT coalesce('process ' || a.pid || ' of ' || a.usename || ', ' || a.state || ', in a transaction since '
                           || date_trunc('second', a.xact_start), 'a prepared transaction') AS holder
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  WHERE l.granted AND c.relnamespace = to_regnamespace(:name) AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND coalesce(a.xact_start < clock_timestamp() - make_interval(secs => 1), true)
) AS holders"""

OURS = re.compile(rf"outbox_(feed|{'|'.join(RELATIONS)}|(messages|journal)_\d+)")
"""The names of our tables and their partitions."""


def migrations(step: Literal["pre", "post"] = "pre") -> dict[int, str]:
    """What makes the tables of each version of those before: from nothing, `schema.sql`. Or what is left to do then."""
    files = sorted((file for file in FOLDER.iterdir() if f"_{step}_" in file.name), key=lambda file: file.name)
    later = {int(file.name.partition("_")[0]): file.read_text(encoding="utf-8") for file in files}
    return later if step == "post" else {FIRST: sql.source("schema.sql"), **later}


def upgrade(
    connection: Connection | DjangoConnection | MockConnection, schema: str | None = None, *, to: int | None = None
) -> list[int]:
    """Bring the tables in `schema` up to version `to`, or that of this release, inside the connection's transaction.

    Without `schema` it takes the setting `database_schema`, or else the first schema of the search_path. With Alembic's
    connection for `--sql`, it writes into Alembic's script.

    Returns the versions that it applied: none if the tables were up to date. Many hosts may run it at once: the others
    wait for the first. Writers never wait for it for much longer than two seconds: while another transaction
    holds its locks, it tries again for a minute. Raises `SchemaLocked`, `SchemaTooNew`, `UnsupportedDialect`,
    or `ConfigurationError` for an odd name.
    """
    schema, to = schema or Settings().database_schema, VERSION if to is None else to
    if isinstance(connection, MockConnection):
        return _written(schema and _checked(schema), to)
    run, place, found = _begun(connection, schema)
    applied = {version: script for version, script in migrations().items() if found < version <= to}
    note = (
        f"INSERT INTO {place}.outbox_versions (version) VALUES (:version);"
        f"COMMENT ON TABLE {place}.outbox_versions IS ':version'"  # a dump without rows has it
    )
    _apply(run, place, applied, note)
    return [*applied]


def finish(connection: Connection | DjangoConnection, schema: str | None = None) -> list[int]:
    """Do what the upgrades up to now have left, inside the connection's transaction, when no process of an earlier
    release is at work any more. Returns the versions that it finished. Waits and raises as `upgrade` does."""
    run, place, found = _begun(connection, schema or Settings().database_schema)
    left = {version: script for version, script in migrations("post").items() if version <= found}
    if not left:
        return []
    asked = (
        f"SELECT string_agg(version::text, ' ' ORDER BY version) FROM {place}.outbox_versions WHERE finished_at IS NULL"
    )
    finished = {version: left[version] for version in map(int, (run.scalar(asked) or "").split()) if version in left}
    _apply(run, place, finished, f"UPDATE {place}.outbox_versions SET finished_at = now() WHERE version = :version")
    return [*finished]


def _begun(connection: Connection | DjangoConnection, schema: str | None) -> tuple[Runner, str, int]:
    """What runs SQL, alone; the name of the schema in SQL; and the version of its tables: 0 if there are none."""
    run = runner(connection)
    schema = _checked(schema or str(run.scalar("SELECT current_schema()")))
    place = quoted(schema)
    run.scalar("SELECT pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || :schema, 0))", schema=schema)
    if not run.scalar("SELECT to_regnamespace(:name)::text", name=place):
        run.script(f"CREATE SCHEMA {place}")
    if (encoding := run.scalar("SELECT current_setting('server_encoding')")) != "UTF8":
        raise UnsupportedEncoding(encoding=encoding)
    made = run.scalar("SELECT to_regclass(:name)::text", name=f"{place}.outbox_versions")
    found = (run.scalar(f"SELECT max(version) FROM {place}.outbox_versions") or _refilled(run, place)) if made else 0
    if found > VERSION:
        raise SchemaTooNew(found=found, needed=VERSION)
    if 0 < found < FIRST:
        raise SchemaOutgrown(found=found, needed=FIRST, where=where(schema))
    return run, place, found


def _refilled(run: Runner, place: str) -> int:
    """Tables without rows come from a dump without data, or somebody has emptied them. Note again of which version they
    are, and which days there are. Returns the version."""
    version = run.scalar("SELECT obj_description(to_regclass(:name), 'pg_class')", name=f"{place}.outbox_versions")
    if not (version or "").isdecimal():
        raise SchemaEmptied(where=f"schema {place}", needed=VERSION)
    run.script(f"INSERT INTO {place}.outbox_versions (version) VALUES ({version}); SELECT {place}.outbox_day_turn(2)")
    return int(version)


def _apply(run: Runner, place: str, scripts: Mapping[int, str], note: str) -> None:
    """All or none, so that no lock is held while another one is waited for again. `note`: notes a version."""
    if not scripts:
        return
    for tried in range(1, TRIES + 1):
        run.script("SAVEPOINT outbox_upgrade")
        try:
            before = {name: run.scalar("SELECT current_setting(:name)", name=name) for name in (*STYLE, "search_path")}
            _set(run, STYLE)
            for version, script in scripts.items():
                run.script(_filled_in(script, place))
                run.script(note.replace(":version", str(version)))
            _set(run, before)
        except Exception as error:
            if _sqlstate(error) != LOCKED:
                raise
            run.script("ROLLBACK TO SAVEPOINT outbox_upgrade")
            if tried == TRIES:
                holders = run.scalar(HOLDERS, name=place) or "sessions that have ended by now"
                raise SchemaLocked(tries=tried, limit=STYLE["lock_timeout"], holders=holders) from error
            time.sleep(PAUSE)
        else:
            run.script("RELEASE SAVEPOINT outbox_upgrade")
            return


def _sqlstate(error: BaseException) -> str | None:
    """As the driver says it: SQLAlchemy and Django have errors of their own around the driver's."""
    inner = getattr(error, "orig", None) or error.__cause__
    return getattr(error, "sqlstate", None) or (_sqlstate(inner) if inner else None)


def grant(connection: Connection | DjangoConnection, kind: Kind, role: str, schema: str | None = None) -> None:
    """Let the database role `role` do with the tables in `schema` what this kind of role does, and nothing else.

    Raises `UnknownRole`."""
    run = runner(connection)
    if run.scalar("SELECT to_regrole(quote_ident(:role))::text", role=role) is None:
        raise UnknownRole(role=role)
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


def _set(run: Runner, settings: Mapping[str, str]) -> None:
    """Change settings for the rest of the transaction."""
    for name, value in settings.items():
        run.scalar("SELECT set_config(:name, :value, true)", name=name, value=value)


def _checked(schema: str) -> str:
    """The name of a schema. Refuses characters with which it could leave the quotes around it in the scripts."""
    if re.search(r"['%:$\\\x00-\x1f]", schema):
        rule = "the tables can't be made in a schema with ' % : $ \\ or a control character in its name"
        raise ConfigurationError(setting="database_schema", value=schema, rule=rule)
    return schema


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _filled_in(script: str, place: str) -> str:
    return re.sub(r":schema\b", lambda _: place, script)


PREPARED = """
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'The outbox needs a database in UTF8. This one is in %', current_setting('server_encoding');
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || place, 0));
  IF to_regnamespace(quote_ident(place)) IS NULL THEN
    EXECUTE format('CREATE SCHEMA %I', place);
  END IF;"""

APPLIED = """
  IF to_regclass(format('%I.outbox_versions', place)) IS NOT NULL THEN
    EXECUTE format('SELECT EXISTS (SELECT FROM %I.outbox_versions WHERE version >= {version})', place) INTO done;
  END IF;
  IF done IS NOT TRUE THEN
    EXECUTE replace($outbox_script${script}$outbox_script$, ':schema', quote_ident(place));
    EXECUTE format('INSERT INTO %I.outbox_versions (version) VALUES ({version})', place);
    EXECUTE format('COMMENT ON TABLE %I.outbox_versions IS %L', place, {version});
  END IF;"""


def _written(schema: str | None, to: int) -> list[int]:
    """Write all versions into the script of Alembic's `--sql`. When it runs, it skips versions that are there."""
    from alembic import op

    write = op.get_context().impl.static_output
    place = _literal(schema) if schema else "current_schema()"
    kept = (*STYLE, "search_path")
    before = "".join(f"\n  {name}_before text := current_setting('{name}');" for name in kept)
    set_to = "".join(f"\n  PERFORM set_config('{name}', '{value}', true);" for name, value in STYLE.items())
    set_back = "".join(f"\n  PERFORM set_config('{name}', {name}_before, true);" for name in kept)
    versions = [version for version in migrations() if version <= to]
    for step in (PREPARED, *(APPLIED.format(version=n, script=migrations()[n]) for n in versions)):
        declared = f"DECLARE\n  place text := {place};\n  done boolean;{before}"
        if step is PREPARED:  # waits for other upgrades
            write(f"DO $outbox_tasks$\nDECLARE\n  place text := {place};\nBEGIN{step}\nEND\n$outbox_tasks$;")
            continue
        write(f"DO $outbox_tasks$\n{declared}\nBEGIN{set_to}{step}{set_back}\nEND\n$outbox_tasks$;")
    return versions
