"""Creating and upgrading the tables: numbered SQL files, each run once, in order, under a lock.

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
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from sqlalchemy import Connection, text
from sqlalchemy.engine.mock import MockConnection
from sqlalchemy.util import await_only

from outbox_tasks.database.pieces import check_dialect
from outbox_tasks.database.rights import HIDDEN, Kind, functions, rights
from outbox_tasks.database.schema import VERSION, quoted, tables, where
from outbox_tasks.errors import ConfigurationError, SchemaLocked, SchemaMissing, SchemaTooNew, UnknownRole
from outbox_tasks.settings import Settings

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

PARTITION = re.compile(r"outbox_archive_(default|\d{8}|gone_\d{8}|rest_\d{20})")
"""The names of the archive's partitions, and of those taken out of it."""


class DjangoConnection(Protocol):
    """One of Django's database connections."""

    vendor: str

    def cursor(self) -> Any: ...


def migrations() -> dict[int, str]:
    """The text of every migration, by its number."""
    files = (f for f in resources.files(__name__).iterdir() if f.name.endswith(".sql"))
    return {int(f.name[:4]): f.read_text(encoding="utf-8") for f in sorted(files, key=lambda f: f.name)}


def upgrade(
    connection: Connection | DjangoConnection | MockConnection, schema: str | None = None, *, to: int = VERSION
) -> list[int]:
    """Bring the tables in `schema` up to version `to`, inside the connection's transaction.

    Without `schema` it takes the setting `database_schema`, or else the first schema of the search_path. With Alembic's
    connection for `--sql`, it writes into Alembic's script.

    Returns the versions that it applied: none if the tables were up to date. Many hosts may run it at once: the others
    wait for the first. Writers never wait for it for much longer than two seconds: while another transaction
    holds its locks, it tries again for a minute. Raises `SchemaLocked`, `SchemaTooNew`, `UnsupportedDialect`,
    or `ConfigurationError` for an odd name.
    """
    schema = schema or Settings().database_schema
    if isinstance(connection, MockConnection):
        return _written(schema and _checked(schema), to)
    run = _runner(connection)
    schema = _checked(schema or str(run.scalar("SELECT current_schema()")))
    place = quoted(schema)
    run.scalar("SELECT pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || :schema, 0))", schema=schema)
    if not run.scalar("SELECT to_regnamespace(:name)::text", name=place):
        run.script(f"CREATE SCHEMA {place}")
    run.script(
        f"CREATE TABLE IF NOT EXISTS {place}.outbox_versions "
        "(version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    found = run.scalar(f"SELECT max(version) FROM {place}.outbox_versions") or 0
    if found > VERSION:
        raise SchemaTooNew(found=found, needed=VERSION)
    applied = [version for version in migrations() if found < version <= to]
    if applied:
        _apply(run, applied, schema, place)
    return applied


def _apply(run: _Alchemy | _Django, versions: Sequence[int], schema: str, place: str) -> None:
    """All or none, so that no lock is held while another one is waited for again."""
    for tried in range(1, TRIES + 1):
        run.script("SAVEPOINT outbox_upgrade")
        try:
            before = {name: run.scalar("SELECT current_setting(:name)", name=name) for name in STYLE}
            _set(run, STYLE)
            for version in versions:
                run.script(_filled_in(migrations()[version], schema, place))
                run.script(f"INSERT INTO {place}.outbox_versions (version) VALUES ({version})")
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
    run = _runner(connection)
    if run.scalar("SELECT to_regrole(quote_ident(:role))::text", role=role) is None:
        raise UnknownRole(role=role)
    for statement in grants(connection, kind, role, schema):
        run.script(statement)


def grant_writer(connection: Connection | DjangoConnection, role: str, schema: str | None = None) -> None:
    """The same as `grant(connection, "writer", role, schema)`."""
    grant(connection, "writer", role, schema)


def grants(
    connection: Connection | DjangoConnection, kind: Kind, role: str, schema: str | None = None
) -> Iterator[str]:
    """The statements of `grant`."""
    run = _runner(connection)
    schema = schema or Settings().database_schema or str(run.scalar("SELECT current_schema()"))
    place, to = quoted(schema), quoted(role)
    yield f"GRANT USAGE ON SCHEMA {place} TO {to};"
    for relation, privileges in rights(tables(schema), kind):
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
    if kind in ("relay", "operator"):  # those who work on single days
        yield f"SELECT {place}.outbox_archive_share();"


def _shown(run: _Alchemy | _Django, relation: str) -> str:
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
    ours = {table.name for table in tables().messages.metadata.tables.values()}
    return type_ != "table" or name is None or not (name in ours or PARTITION.fullmatch(name))


def _runner(connection: Connection | DjangoConnection) -> _Alchemy | _Django:
    if isinstance(connection, Connection):
        check_dialect(connection.dialect.name)
        return _Alchemy(connection)
    check_dialect(connection.vendor)
    return _Django(connection)


def _set(run: _Alchemy | _Django, settings: Mapping[str, str]) -> None:
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


def _filled_in(script: str, schema: str, place: str) -> str:
    script = re.sub(r":schema_literal\b", lambda _: _literal(schema), script)
    return re.sub(r":schema\b", lambda _: place, script)


PREPARED = """
  PERFORM pg_advisory_xact_lock(hashtextextended('outbox_tasks ' || place, 0));
  IF to_regnamespace(quote_ident(place)) IS NULL THEN
    EXECUTE format('CREATE SCHEMA %I', place);
  END IF;
  EXECUTE format('CREATE TABLE IF NOT EXISTS %I.outbox_versions (version integer PRIMARY KEY, '
                 'applied_at timestamptz NOT NULL DEFAULT clock_timestamp())', place);"""

APPLIED = """
  EXECUTE format('SELECT EXISTS (SELECT FROM %I.outbox_versions WHERE version >= {version})', place) INTO done;
  IF NOT done THEN
    EXECUTE replace(replace($outbox_script${script}$outbox_script$,
                            ':schema_literal', quote_literal(place)), ':schema', quote_ident(place));
    EXECUTE format('INSERT INTO %I.outbox_versions (version) VALUES ({version})', place);
  END IF;"""


def _written(schema: str | None, to: int) -> list[int]:
    """Write all versions into the script of Alembic's `--sql`. When it runs, it skips versions that are there."""
    from alembic import op

    write = op.get_context().impl.static_output
    place = _literal(schema) if schema else "current_schema()"
    before = "".join(f"\n  {name}_before text := current_setting('{name}');" for name in STYLE)
    set_to = "".join(f"\n  PERFORM set_config('{name}', '{value}', true);" for name, value in STYLE.items())
    set_back = "".join(f"\n  PERFORM set_config('{name}', {name}_before, true);" for name in STYLE)
    versions = [version for version in migrations() if version <= to]
    for step in (PREPARED, *(APPLIED.format(version=n, script=migrations()[n]) for n in versions)):
        declared = f"DECLARE\n  place text := {place};\n  done boolean;{before}"
        if step is PREPARED:  # waits for other upgrades
            write(f"DO $outbox_tasks$\nDECLARE\n  place text := {place};\nBEGIN{step}\nEND\n$outbox_tasks$;")
            continue
        write(f"DO $outbox_tasks$\n{declared}\nBEGIN{set_to}{step}{set_back}\nEND\n$outbox_tasks$;")
    return versions


class _Alchemy:
    """Runs SQL on a SQLAlchemy connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def scalar(self, sql: str, **values: str) -> Any:
        return self._connection.scalar(text(sql.replace("::text", "\\:\\:text")), values)

    def script(self, sql: str) -> None:
        """Without parameters, so that the driver takes several statements and leaves % alone."""
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
