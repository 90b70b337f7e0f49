"""The outbox tables: whether they are of this release and complete, and whether autovacuum keeps them small."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from outbox_tasks import sql
from outbox_tasks.database.connection import lacks_rights
from outbox_tasks.database.schema import VERSION, where
from outbox_tasks.errors import DatabaseUnavailable, SchemaMismatch, SchemaMissing
from outbox_tasks.operating.problems.problem import Problem, error, note, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.operating.problems.transactions import oldest_snapshot
from outbox_tasks.text import span

BEHIND = 10
"""There are too many dead rows from this many times the number at which autovacuum starts."""

HELD = 5
"""How many times as many count, if the table was vacuumed lately: those of a busy minute are no problem."""

USUAL = 5000
"""Dead rows at which autovacuum starts, more or less, on a table that has no option for that."""

LOCKS_A_DAY = 6
"""Locks that a look for a message takes for each day: on the partitions of messages and of the journal, and on their
four indexes."""

LOOKS_AT_ONCE = 5
"""Looks for messages for which the server should have locks at the same time."""

Options = dict[str, str]


@cache
def _made() -> tuple[dict[str, Options], dict[str, tuple[str, str]]]:
    """What `schema.sql` makes: the tables (but those of many partitions), with their options; and the indexes, with
    their tables and statements."""
    script = re.sub(r"--[^\n]*", "", sql.source("schema.sql"))
    tables = re.findall(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+) \(\n.*?^\)([^;]*);", script, re.MULTILINE | re.DOTALL)
    indexes = re.findall(r"^(CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) ON (\w+) [^;]*);", script, re.MULTILINE)
    options = {name: dict(re.findall(r"(\w+) = (\w+)", tail)) for name, tail in tables if "PARTITION" not in tail}
    return options, {name: (table, " ".join(statement.split())) for statement, name, table in indexes}


def version(site: Site) -> Problems:
    """Whether the tables are there, and have the version of this release."""
    place = where(site.settings.database_schema)
    try:
        site.store.check_version()
    except SchemaMissing:
        yield error(
            "schema_missing", f"The outbox tables are not in {place}.", "Nothing can be stored, and nothing sent.",
            "outbox-tasks init; if they are elsewhere, set OUTBOX_DATABASE_SCHEMA.",
        )  # fmt: skip
    except SchemaMismatch as other:
        yield error(
            "schema_mismatch",
            f"The outbox tables in {place} are of version {other.found}, and this release needs version {VERSION}.",
            "Workers of this release refuse to start.",
            "Use the release that made them. Or let it send what is left (outbox-tasks drain), drop the tables, and "
            "run outbox-tasks init of this release.",
        )
    except DatabaseUnavailable as away:
        if not lacks_rights(away):
            raise
        # The next checks say which rights are missing, or that rows are hidden.
    else:
        site.reached.add("tables")


def days(site: Site) -> Problems:
    """Whether new messages get the numbers of today, and whether few enough days are kept."""
    [row] = site.look("days")
    if row.behind:
        yield error(
            "sequence_behind",
            "The sequence outbox_seq is behind the messages that are there.",
            "A logical upgrade, a restore of some tables or a setval has left it there, or outbox_days is empty. "
            "Inserts of messages fail, or go into a day that is over, and messages with keys wait.",
            "outbox-tasks maintain",
        )
    locks = row.days * LOCKS_A_DAY
    if row.room < LOOKS_AT_ONCE * locks:
        enough = -(-LOOKS_AT_ONCE * locks // row.clients)
        yield warning(
            "many_days",
            f"{row.days:,} days of messages are kept: a look for a message takes {locks:,} locks, and the server has "
            f"room for {row.room:,}.",
            "publish with an id, cancel and show look for messages. If several do so at the same time, one fails with "
            "'out of shared memory', and other transactions may fail too.",
            "Keep fewer days: OUTBOX_ARCHIVE_RETENTION. Or restart the server after "
            f"ALTER SYSTEM SET max_locks_per_transaction = {enough};",
        )


def indexes(site: Site) -> Problems:
    """Whether the indexes that our statements need are there, and PostgreSQL can use them."""
    tables, expected = _made()
    owners = [*tables, *{table for table, _ in expected.values()} - tables.keys()]
    there = {row.name: row for row in site.look("indexes", tables=owners)}
    lost = {name for name, (_, made) in expected.items() if name not in there or not _same(made, there[name].columns)}
    invalid = {name for name, row in there.items() if not row.valid}
    yield from (_index_missing(site, name, *expected[name], there=name in there) for name in sorted(lost))
    yield from (_index_invalid(site, name, known=name in expected) for name in sorted(invalid))
    if not (lost | invalid) & expected.keys():
        # Without them, counting messages would read all of them.
        site.reached.add("indexes")


def _same(made: str, columns: list[str]) -> bool:
    """Whether the statement names these columns; an operator class may follow each."""
    named = re.search(r"\(([^)]*)\)", made)
    names = [column.split()[0] for column in named[1].split(", ")] if named else []
    return names == [column.strip('"') for column in columns]


def _index_missing(site: Site, name: str, table: str, made: str, *, there: bool) -> Problem:
    # An index of a partitioned table can't be built concurrently.
    concurrently = table in _made()[0]
    made = made.replace(f" ON {table}", f" ON {site.qualified(table)}")
    made = made.replace("INDEX", "INDEX CONCURRENTLY", 1) if concurrently else made
    drop = f"DROP INDEX {site.qualified(name)};\n" if there else ""
    return error(
        "index_missing",
        f"The index {name} on {table} " + ("has other columns than ours." if there else "is missing."),
        "Statements that need it read the whole table instead, and get slower with each row.",
        f"{drop}{made};" + ("" if concurrently else "  -- writers wait while it runs"),
        which=name,
    )


def _index_invalid(site: Site, name: str, *, known: bool) -> Problem:
    drop = f"DROP INDEX CONCURRENTLY {site.qualified(name)};"
    return (error if known else warning)(
        "index_invalid",
        f"The index {name} is invalid: its build was broken off.",
        "PostgreSQL updates it with each write, but can't use it.",
        f"REINDEX INDEX CONCURRENTLY {site.qualified(name)};" if known else drop,
        which=name,
    )


def vacuuming(site: Site) -> Problems:
    """Whether autovacuum keeps the tables small."""
    tables = _made()[0]
    rows = site.look("vacuum", tables=list(tables))
    own = {row.name: dict(option.split("=", 1) for option in row.options or []) for row in rows}
    yield from _autovacuum_off(site, rows[0], own)
    for row in rows:
        yield from (*_dead_rows(site, row, own[row.name]), *_changed(site, row.name, own[row.name]))


def _autovacuum_off(site: Site, server: Any, own: dict[str, Options]) -> Iterator[Problem]:
    off = [setting for setting in ("autovacuum", "track_counts") if getattr(server, setting) == "off"]
    of_tables = [
        name for name, options in own.items()
        if options.get("autovacuum_enabled", "true").lower() in ("false", "off", "no", "0")
    ]  # fmt: skip
    why = "Each message leaves dead rows. Nobody removes them, so tables and indexes grow, and looks get slower."
    if of_tables:
        remedy = "\n".join(f"ALTER TABLE {site.qualified(name)} RESET (autovacuum_enabled);" for name in of_tables)
        yield error("autovacuum_off", f"Autovacuum is off for {', '.join(of_tables)}.", why, remedy)
    if off:
        what = f"Autovacuum is off on this server ({' and '.join(f'{setting} = off' for setting in off)})."
        remedy = "\n".join(f"ALTER SYSTEM SET {setting} = on;" for setting in off) + "\nSELECT pg_reload_conf();"
        yield error("autovacuum_off", what, why, remedy)


def _dead_rows(site: Site, row: Any, options: Options) -> Iterator[Problem]:
    threshold = int(options.get("autovacuum_vacuum_threshold", USUAL + row.live // 5))
    lately = row.vacuumed is not None and row.vacuumed <= site.long
    # If a vacuum has just left so many, something keeps it from removing them.
    if row.dead > (HELD if lately else 1) * BEHIND * threshold:
        when = "never" if row.vacuumed is None else f"{span(row.vacuumed)} ago"
        holder, remedy = oldest_snapshot(site)
        yield warning(
            "dead_rows",
            f"{row.name} has {row.dead:,} dead rows beside {row.live:,} live ones; it was last vacuumed {when}. "
            f"{holder}",
            "Looks and wakes step over them. Autovacuum is off or too slow, or an old snapshot keeps it from removing "
            "them.",
            f"VACUUM (VERBOSE) {site.qualified(row.name)};  -- how many are 'dead but not yet removable'"
            + (f"\n{remedy}" if remedy else ""),
            which=row.name,
        )


def _changed(site: Site, name: str, options: Options) -> Iterator[Problem]:
    ours = _made()[0][name]
    lost = {option: value for option, value in ours.items() if option not in options}
    other = {option: options[option] for option, value in ours.items() if options.get(option, value) != value}
    if lost:
        yield warning(
            "table_options",
            f"{name} has lost options: {', '.join(lost)}.",
            "With the server's defaults, autovacuum waits for a share of the rows: too long with a large backlog.",
            f"ALTER TABLE {site.qualified(name)} SET ({_assigned(lost, ours)});",
            which=name,
        )
    if other:
        yield note(
            "table_options",
            f"{name} has options of your own: {_assigned(other, other)}.",
            "With ours, autovacuum starts after so many dead rows, whatever the table's size.",
            f"If that is not on purpose: ALTER TABLE {site.qualified(name)} SET ({_assigned(other, ours)});",
            which=name,
        )


def _assigned(names: Sequence[str] | Options, values: Options) -> str:
    return ", ".join(f"{name} = {values[name]}" for name in names)
