"""The outbox tables: whether they are of this release and complete, what our role may do with them, and whether
autovacuum keeps them small."""

from __future__ import annotations

import json
import re
from functools import cache

from outbox_tasks.database import sql
from outbox_tasks.database.connection import lacks_rights
from outbox_tasks.database.rights import RELATIONS, functions, rights
from outbox_tasks.database.schema import VERSION, quoted, where
from outbox_tasks.errors import DatabaseUnavailable, SchemaMismatch, SchemaMissing
from outbox_tasks.operating.problems.problem import Problem, error, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.operating.problems.transactions import oldest_snapshot
from outbox_tasks.text import span


@cache
def _made() -> tuple[list[str], dict[str, tuple[str, str]]]:
    """What `schema.sql` makes: the tables without partitions; and the indexes, with their tables and statements."""
    script = re.sub(r"--[^\n]*", "", sql.schema())
    tables = re.findall(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+) \(\n.*?^\)([^;]*);", script, re.MULTILINE | re.DOTALL)
    indexes = re.findall(r"^(CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) ON (\w+) [^;]*);", script, re.MULTILINE)
    plain = [name for name, tail in tables if "PARTITION" not in tail]
    return plain, {name: (table, " ".join(statement.split())) for statement, name, table in indexes}


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
    """Whether new messages get the numbers of today."""
    if site.look("days")[0].behind:
        yield error(
            "sequence_behind",
            "The sequence outbox_seq is behind the messages that are there.",
            "A logical upgrade, a restore of some tables or a setval has left it there, or outbox_days is empty. "
            "Inserts of messages fail, or go into a day that is over, and messages with keys wait.",
            "outbox-tasks maintain",
        )


def indexes(site: Site) -> Problems:
    """Whether the indexes that our statements need are there, and PostgreSQL can use them."""
    plain, expected = _made()
    rows = site.look("indexes", tables=[*{*plain, *(table for table, _ in expected.values())}])
    there = {row.name: row.valid for row in rows}
    for name, (table, statement) in expected.items():
        if name not in there:
            yield _index_missing(site, name, table, statement)
        elif not there[name]:
            yield error(
                "index_invalid", f"The index {name} is invalid: its build was broken off.",
                "PostgreSQL updates it with each write, but can't use it.",
                f"REINDEX INDEX CONCURRENTLY {site.qualified(name)};", which=name,
            )  # fmt: skip
    if all(there.get(name) for name in expected):
        # Without them, counting messages would read all of them.
        site.reached.add("indexes")


def _index_missing(site: Site, name: str, table: str, statement: str) -> Problem:
    remedy = statement.replace(f" ON {table}", f" ON {site.qualified(table)}")
    if table in _made()[0]:
        remedy = f"{remedy.replace('INDEX', 'INDEX CONCURRENTLY', 1)};"
    else:
        remedy = f"{remedy};  -- writers wait while it runs"  # an index of a partitioned table can't do otherwise
    return error(
        "index_missing", f"The index {name} on {table} is missing.",
        "Statements that need it read the whole table instead, and get slower with each row.", remedy, which=name,
    )  # fmt: skip


def vacuuming(site: Site) -> Problems:
    """Whether autovacuum may run, and keeps the tables small."""
    rows = site.look("vacuum", tables=_made()[0])
    if unattended := [site.qualified(row.name) for row in rows if row.disabled]:
        yield error(
            "autovacuum_off",
            f"Autovacuum is off for {', '.join(unattended)}.",
            "Each message leaves dead rows. Nobody removes them, so tables and indexes grow, and looks get slower.",
            "\n".join(f"ALTER TABLE {name} RESET (autovacuum_enabled);" for name in unattended),
        )
    for row in rows:
        lately = row.vacuumed is not None and row.vacuumed <= site.settings.stale_after
        # Ten times the number at which autovacuum starts are too many. A busy minute may leave five times as many: if a
        # vacuum has just left more than that, something keeps it from removing them.
        if row.dead > (50 if lately else 10) * row.threshold:
            when = "never" if row.vacuumed is None else f"{span(row.vacuumed)} ago"
            holder, remedy = oldest_snapshot(site)
            yield warning(
                "dead_rows",
                f"{row.name} has {row.dead:,} dead rows beside {row.live:,} live ones; it was last vacuumed {when}. "
                f"{holder}",
                "Looks and wakes step over them. Autovacuum is off or too slow, or an old snapshot keeps it from "
                "removing them.",
                f"VACUUM (VERBOSE) {site.qualified(row.name)};  -- how many are 'dead but not yet removable'"
                + (f"\n{remedy}" if remedy else ""),
                which=row.name,
            )


def lacking(site: Site) -> Problems:
    """Whether the relay's role has the rights that it needs."""
    needed = [{"relation": name, "privilege": each} for name, privileges in rights("relay") for each in privileges]
    lacks: dict[str, list[str]] = {}
    for row in site.look("rights", needed=json.dumps(needed), functions=list(functions("relay"))):
        lacks.setdefault(row.name, []).append(row.privilege)
    if not lacks or ("outbox_heartbeats" in lacks and not site.deep):
        return  # a person looks, with a role of their own. Only the doctor is asked with the relay's role.
    role = site.server.role
    facts, grants = [], []
    for name, privileges in lacks.items():
        what = f"FUNCTION {name}" if privileges == ["EXECUTE"] else site.qualified(name)
        facts.append(f"{', '.join(sorted(privileges))} on {name}")
        grants.append(f"GRANT {', '.join(sorted(privileges))} ON {what} TO {quoted(role)};")
    yield error(
        "rights_missing",
        f"The role {role} lacks rights: {'; '.join(facts)}.",
        "If the relay works with this role, whatever needs them fails: claims, sends, counts, housekeeping.",
        "\n".join(grants),
    )


def hidden(site: Site) -> Problems:
    """Whether row-level security hides rows from our role."""
    rows = site.look("hidden", names=[f"outbox_{name}" for name in RELATIONS])
    if not rows:
        return
    role = quoted(site.server.role)
    switched_off = "\n".join(
        f"ALTER TABLE {site.qualified(row.name)} {'NO FORCE' if row.own else 'DISABLE'} ROW LEVEL SECURITY;"
        for row in rows
    )
    yield error(
        "rows_hidden",
        f"Row-level security hides rows of {', '.join(row.name for row in rows)} from the role {site.server.role}.",
        "The relay refuses to work, because it could not know of the messages in them. Rights keep others out "
        "already: see docs/security.md.",
        f"{switched_off}\n-- or, if it must stay on: ALTER ROLE {role} BYPASSRLS;",
    )
