"""The outbox tables: whether they are of this release and complete, whether our role may use them, and whether
autovacuum keeps them small."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, timedelta
from typing import Any

from sqlalchemy import Column, Index, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex

from outbox_tasks.database.rights import functions
from outbox_tasks.database.rights import rights as rights_of
from outbox_tasks.database.schema import NO_RIGHTS, VERSION, Tables, qualified, quoted, where
from outbox_tasks.errors import DatabaseUnavailable, SchemaMissing, SchemaTooNew, SchemaTooOld
from outbox_tasks.operating.archive import statements as archive
from outbox_tasks.operating.archive.partitions import day_of
from outbox_tasks.operating.doctor import statements
from outbox_tasks.operating.doctor.finding import Finding, Fine, error, note, warning
from outbox_tasks.operating.doctor.site import Results, Site
from outbox_tasks.text import span

TRIGGERS = {"outbox_keep_order", "outbox_keep_deliver_at"}

OPTIONS = {
    "fillfactor": "45",
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "5000",
    "autovacuum_vacuum_insert_scale_factor": "0",
    "autovacuum_vacuum_insert_threshold": "50000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "20000",
    "autovacuum_vacuum_cost_delay": "0",
}
"""The options of outbox_messages, as the migrations set them."""

BEHIND = 10
"""There are too many dead rows from this many times the number at which autovacuum starts."""

HELD = 5
"""How many times as many count, if the table was vacuumed lately: those of a busy minute are no finding."""


def version(site: Site) -> Results:
    """Whether the tables are there, and have the version of this release."""
    place = where(site.settings.database_schema)
    try:
        site.store.check_version()
    except SchemaMissing:
        yield error(
            "schema_missing", f"The outbox tables are not in {place}.", "Nothing can be stored, and nothing sent.",
            "outbox-tasks init; if they are elsewhere, set OUTBOX_DATABASE_SCHEMA.",
        )  # fmt: skip
    except SchemaTooOld as old:
        yield error(
            "schema_old", f"The outbox tables have version {old.found}, and this release needs {old.needed}.",
            "Workers of this release refuse to start.", "outbox-tasks init",
        )  # fmt: skip
    except SchemaTooNew as new:
        yield error(
            "schema_new", f"The outbox tables have version {new.found}, and this release knows only {new.needed}.",
            "A newer release has upgraded them; workers of this one refuse to start.",
            "Install the newer release here too.",
        )  # fmt: skip
    except DatabaseUnavailable as away:
        if getattr(getattr(away.__cause__, "orig", None), "sqlstate", None) != NO_RIGHTS:
            raise
        # The next check says which rights are missing.
    else:
        site.reached.add("tables")
        yield Fine(f"the tables have version {VERSION}")


def rights(site: Site) -> Results:
    """Whether the relay's role has the rights that it needs."""
    t = site.store.tables
    needed = [{"relation": name, "privilege": one} for name, privileges in rights_of(t, "relay") for one in privileges]
    lacking: dict[str, list[str]] = {}
    for row in site.rows(statements.rights(t), needed=json.dumps(needed)):
        lacking.setdefault(row.relation, []).append(row.privilege)
    granted = [(", ".join(sorted(some)), name, _named(t, name)) for name, some in lacking.items()]
    uncallable = [row.function for row in site.rows(statements.uncallable(t), names=list(functions("relay")))]
    granted += [("EXECUTE", name, f"FUNCTION {name}") for name in uncallable]
    [row] = site.rows(statements.server())
    if granted:
        yield error(
            "rights_missing",
            f"The role {row.role} lacks rights: {'; '.join(f'{some} on {name}' for some, name, _ in granted)}.",
            "If the relay works with this role, whatever needs them fails: claims, sends, counts, housekeeping.",
            "\n".join(f"GRANT {some} ON {what} TO {quoted(row.role)};" for some, _, what in granted)
            + f"\nSELECT {_named(t, 'outbox_archive_share')}();",
        )
    else:
        yield Fine(f"the role {row.role} has all rights that it needs")


def _named(t: Tables, name: str) -> str:
    return qualified(t.messages.schema, name)


def indexes(site: Site) -> Results:
    """Whether the indexes that our statements need are there, and PostgreSQL can use them."""
    t = site.store.tables
    owners = [t.messages, t.archive, t.inbox, t.audit]
    there = {row.name: row for row in site.rows(statements.indexes(t), tables=[table.name for table in owners])}
    expected = {
        str(index.name): index for table in owners for index in sorted(table.indexes, key=lambda i: str(i.name))
    }
    lost = {name for name, index in expected.items() if name not in there or not _same(index, there[name].columns)}
    invalid = {name for name, row in there.items() if not row.valid}
    yield from (_index_missing(expected[name], there=name in there) for name in sorted(lost))
    yield from (_index_invalid(t, name, known=name in expected) for name in sorted(invalid))
    if (lost | invalid).isdisjoint(str(index.name) for index in t.messages.indexes):
        # Without them, counting messages would read all of them.
        site.reached.add("indexes")
    if not lost | invalid:
        yield Fine(f"all {len(expected)} indexes are there, and valid")


def _same(index: Index, columns: list[str]) -> bool:
    """Whether the columns are the same. Expressions are not compared: PostgreSQL writes them in its own way."""
    names = [expression.name if isinstance(expression, Column) else None for expression in index.expressions]
    return len(names) == len(columns) and all(n in (None, c.strip('"')) for n, c in zip(names, columns, strict=True))


def _index_missing(index: Index, *, there: bool) -> Finding:
    table = index.table
    assert isinstance(table, Table)
    # An index of a partitioned table can't be built concurrently.
    concurrently = table.name != "outbox_archive"
    made = " ".join(str(CreateIndex(index).compile(dialect=postgresql.dialect())).split())  # type: ignore[no-untyped-call]
    made = made.replace("INDEX", "INDEX CONCURRENTLY", 1) if concurrently else made
    drop = f"DROP INDEX {qualified(table.schema, str(index.name))};\n" if there else ""
    return error(
        "index_missing",
        f"The index {index.name} on {table.name} " + ("has other columns than ours." if there else "is missing."),
        "Statements that need it read the whole table instead, and get slower with each row.",
        f"{drop}{made};" + ("" if concurrently else "  -- settles wait while it runs"),
    )


def _index_invalid(t: Tables, name: str, *, known: bool) -> Finding:
    drop = f"DROP INDEX CONCURRENTLY {_named(t, name)};"
    return (error if known else warning)(
        "index_invalid",
        f"The index {name} is invalid: its build was broken off.",
        "PostgreSQL updates it with each write, but can't use it.",
        f"REINDEX INDEX CONCURRENTLY {_named(t, name)};" if known else drop,
    )


def triggers(site: Site) -> Results:
    """Whether the triggers of outbox_messages fire."""
    t = site.store.tables
    lost = sorted(TRIGGERS - {row.name for row in site.rows(statements.triggers(t))})
    if not lost:
        yield Fine("the triggers are enabled")
        return
    yield error(
        "trigger_missing",
        f"Triggers of outbox_messages are missing or disabled: {', '.join(lost)}.",
        "Without outbox_keep_order, messages of one key can overtake each other. Without outbox_keep_deliver_at, the "
        "relay forgets when a message was to be delivered.",
        "\n".join(f"ALTER TABLE {_named(t, 'outbox_messages')} ENABLE TRIGGER {name};" for name in lost)
        + "\nIf a trigger was dropped: run its CREATE TRIGGER of outbox_tasks/migrations again.",
    )


def partitions(site: Site) -> Results:
    """Whether the archive has partitions for today and tomorrow, and its default partition is empty."""
    t = site.store.tables
    rows = site.rows(archive.partitions(t))
    days = {day: row for row in rows if row.attached and (day := day_of(row.name, row.since, row.until))}
    today = rows[0].now.astimezone(UTC).date()
    missing = [day for day in (today, today + timedelta(days=1)) if day not in days]
    wrong = [row for row in rows if re.fullmatch(rf"{archive.NAME}\d{{8}}", row.name) and row not in days.values()]
    if wrong:
        yield _wrong(t, wrong)
    if missing:
        yield warning(
            "partition_missing",
            f"The archive has no partition {' and '.join(f'{archive.NAME}{day:%Y%m%d}' for day in missing)}.",
            "Maintenance makes them a week ahead, and has not run. Sent messages go into the default partition.",
            "outbox-tasks maintain\nThen see that beat runs, and a worker on outbox.maintain.",
        )
    [[strays]] = site.rows(statements.strays(t))
    if strays:
        count = f"{strays:,} rows or more" if strays == statements.MOST else f"{strays:,} row{'s' * (strays > 1)}"
        yield warning(
            "default_partition",
            f"The archive's default partition holds {count}, which had no day's partition.",
            "When they are old, retention deletes them one by one, instead of a day at once.",
            "outbox-tasks maintain\nIt makes the next days' partitions, and moves these rows.",
        )
    if not missing and not strays and not wrong:
        yield Fine(f"the archive has its partitions ({len(days)})")


def _wrong(t: Tables, rows: list[Any]) -> Finding:
    taken_out = (
        (f"ALTER TABLE {_named(t, t.archive.name)} DETACH PARTITION {_named(t, row.name)};\n" if row.attached else "")
        + f"ALTER TABLE {_named(t, row.name)} RENAME TO {archive.REST}{row.name[-8:]}000000000000;\n"
        for row in rows
    )
    return warning(
        "partition_wrong",
        f"Named like the archive's partition of a day, but none: {', '.join(row.name for row in rows)}.",
        "They were detached, or have other bounds than their day (UTC). Nobody can make the partition of that day, and "
        "retention leaves these tables alone.",
        f"{''.join(taken_out)}outbox-tasks maintain\nIt moves the rows to partitions of their days.",
    )


def vacuuming(site: Site) -> Results:
    """Whether autovacuum keeps the hot table small."""
    t = site.store.tables
    [row] = site.rows(statements.vacuuming(t))
    name = _named(t, t.messages.name)
    options = dict(option.split("=", 1) for option in row.options or [])
    found = [*_autovacuum_off(row, options, name), *_dead_rows(site, row, options, name), *_changed(options, name)]
    yield from found
    if not found:
        yield Fine(f"autovacuum keeps outbox_messages small (dead rows: {row.dead:,})")


def _autovacuum_off(row: object, options: dict[str, str], name: str) -> Iterator[Finding]:
    own = options.get("autovacuum_enabled", "true").lower() in ("false", "off", "no", "0")
    off = [s for s in ("autovacuum", "track_counts") if getattr(row, s) == "off"]
    if own or off:
        what = "for outbox_messages" if own else f"on this server ({' and '.join(f'{s} = off' for s in off)})"
        yield error(
            "autovacuum_off",
            f"Autovacuum is off {what}.",
            "Each message leaves three dead rows. Nobody removes them, and claims get slower by the hour.",
            f"ALTER TABLE {name} RESET (autovacuum_enabled);"
            if own
            else "\n".join(f"ALTER SYSTEM SET {s} = on;" for s in off) + "\nSELECT pg_reload_conf();",
        )


def _dead_rows(site: Site, row: object, options: dict[str, str], name: str) -> Iterator[Finding]:
    dead, live, vacuumed = (getattr(row, column) for column in ("dead", "live", "vacuumed"))
    threshold = int(options.get("autovacuum_vacuum_threshold", OPTIONS["autovacuum_vacuum_threshold"]))
    lately = vacuumed is not None and vacuumed <= site.long
    # If a vacuum has just left so many, something keeps it from removing them.
    if dead > (HELD if lately else 1) * BEHIND * threshold:
        when = "never" if vacuumed is None else f"{span(vacuumed)} ago"
        yield warning(
            "dead_rows",
            f"outbox_messages has {dead:,} dead rows beside {live:,} live ones; it was last vacuumed {when}.",
            "Claims step over them. Autovacuum is off or too slow, or an old transaction keeps it from removing them.",
            f"VACUUM (VERBOSE) {name};  -- a transaction holds rows that are 'dead but not yet removable'",
        )


def _changed(options: dict[str, str], name: str) -> Iterator[Finding]:
    lost = {option: value for option, value in OPTIONS.items() if option not in options}
    other = {option: options[option] for option, value in OPTIONS.items() if options.get(option, value) != value}
    if lost:
        yield warning(
            "table_options",
            f"outbox_messages has lost options: {', '.join(lost)}.",
            "With the server's defaults, autovacuum waits for a share of the rows: too long with a large backlog.",
            f"ALTER TABLE {name} SET ({', '.join(f'{option} = {value}' for option, value in lost.items())});",
        )
    if other:
        yield note(
            "table_options",
            f"outbox_messages has options of your own: {', '.join(f'{o} = {v}' for o, v in other.items())}.",
            "With ours, autovacuum starts after 5,000 dead rows, whatever the table's size, and makes no pauses.",
            f"If that is not on purpose: ALTER TABLE {name} SET "
            f"({', '.join(f'{option} = {OPTIONS[option]}' for option in other)});",
        )
