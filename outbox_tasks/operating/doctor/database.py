"""The database server: whether it answers and takes writes, and whether our connections have the right settings."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from outbox_tasks.database.connection import PIPE, Database
from outbox_tasks.database.schema import quoted
from outbox_tasks.errors import ConfigurationError, DatabaseUnavailable
from outbox_tasks.operating.doctor.clocks import compared
from outbox_tasks.operating.doctor.finding import Finding, Fine, error, note, or_fine, warning
from outbox_tasks.operating.doctor.site import Results, Site
from outbox_tasks.operating.health import slow
from outbox_tasks.operating.two_places import two_places
from outbox_tasks.text import redacted

PREPARED_AFTER = 6
"""psycopg prepares a statement when it runs it for the sixth time."""

FRESH = 7 * 86_400.0
"""Seconds for which a change of the timeline is told."""

ROUNDS = 5
"""How often both connections are compared. A pooler hands out the same server process again, unless another client
comes in between."""

WANTED = {name: value for name, value in PIPE.items() if name != "TimeZone"}
"""The settings that our statements need. With ISO style the time zone does not matter."""


def reach(site: Site) -> Results:
    """Whether the database answers. Without that, no other check can run."""
    try:
        row = site.server
    except ConfigurationError as refused:
        yield error(
            "settings", str(refused), "Without it the doctor can ask the database nothing.", "Set OUTBOX_DATABASE_URL."
        )
        return
    except DatabaseUnavailable as away:
        yield _away(site, away)
        return
    site.reached.add("server")
    yield Fine(f"PostgreSQL {row.version.split()[0]} answers")
    yield from _slow(site)
    if row.standby or row.read_only:
        yield error(
            "database_read_only",
            f"The database {row.database!r} is {'a standby' if row.standby else 'read-only'}.",
            "It takes no writes: nothing can be claimed, begun or settled.",
            "Point OUTBOX_DATABASE_URL at the primary. With several hosts in it, add target_session_attrs=read-write."
            if row.standby
            else f"If only the default says so: ALTER ROLE {quoted(row.role)} SET default_transaction_read_only = off;",
        )
    if row.encoding != "UTF8":
        yield error(
            "database_encoding",
            f"The database {row.database!r} is in {row.encoding}, not in UTF8.",
            "Texts with characters that it lacks can't be stored, or come out with other characters.",
            "Dump it, and restore it into another one: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0.",
        )


def _slow(site: Site) -> Results:
    if problem := slow(site.store):
        site.slow = True
        yield error(
            "database_slow",
            problem.sentence,
            "A claim takes several round trips, and so do begin and settle. Messages arrive late, or not at all: "
            "beyond statement_timeout.",
            "Check the network, a proxy or pooler between, and how busy the server is "
            "(SELECT state, wait_event_type, count(*) FROM pg_stat_activity GROUP BY 1, 2).",
        )


def _away(site: Site, away: DatabaseUnavailable) -> Finding:
    if "unsupported startup parameter" in away.reason:
        return error(
            "pooler_refuses_options",
            "A connection pooler (PgBouncer) refuses our start-up options: the relay can't connect through it.",
            "The options carry statement_timeout and the planner's settings. A pooler does not pass them on.",
            "Set OUTBOX_STATEMENT_TIMEOUT=0, and put the settings on the role: docs/settings.md, PgBouncer. Or let "
            "the relay connect to PostgreSQL itself.",
        )
    return error(
        "database_away",
        f"The database {redacted(site.settings.database_url or '')} can't be reached: {away.reason}.",
        "Nothing is claimed and nothing is sent. Stored messages stay; applications can't store more.",
        "Start it, or correct OUTBOX_DATABASE_URL. See that firewall, pg_hba.conf and max_connections let us in.",
    )


def pooler(site: Site) -> Results:
    """Whether a pooler is between us and the server, and whether it keeps track of prepared statements."""
    if site.slow:  # this takes many round trips, and says little
        return
    with closing(Database.connect(site.settings)) as one, closing(Database.connect(site.settings)) as other:
        # A pooler invents the process number that it gives at connecting.
        if _backend(one).pid == _pid_at_connecting(one):
            yield Fine("no pooler in between")
            return
        pids = [(_backend(one).pid, _backend(other).pid) for _ in range(ROUNDS)]
        if len({mine for mine, _ in pids}) == 1 and all(mine != theirs for mine, theirs in pids):
            yield Fine("a pooler in session mode")
            return
        kept = [_backend(one).kept for _ in range(PREPARED_AFTER)]
    if any(kept):
        yield error(
            "pooler_prepared",
            "A connection pooler (PgBouncer) in transaction mode does not keep track of prepared statements.",
            "Two clients that share a server connection prepare under the same name, and statements fail with "
            "'prepared statement \"_pg3_0\" already exists'.",
            "Use PgBouncer 1.21 or later with max_prepared_statements = 200; or pool_mode = session for the relay.",
        )
    else:
        yield Fine("a pooler in transaction mode, which keeps track of prepared statements")


def _backend(database: Database) -> Any:
    return database.ask("doctor/backend.sql")[0]


def _pid_at_connecting(database: Database) -> int:
    with database.connection() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        return int(driver.info.backend_pid)


def session(site: Site) -> Results:
    """Whether the relay's connections have the settings that it needs."""
    names = ["statement_timeout", *WANTED]
    found = {row.name: row.setting for row in site.look("settings", names=names)}
    limit = site.settings.statement_timeout or 3.0
    # A DateStyle such as `ISO, MDY`: the order of day and month does not matter.
    wanted = {name: value for name, value in WANTED.items() if found.get(name, "").split(",")[0] != value.split(",")[0]}
    if found.get("statement_timeout") == "0":
        wanted["statement_timeout"] = f"{limit * 1000:.0f}"
    if not wanted:
        yield Fine("the settings that we rely on and statement_timeout are in force")
        return
    role = quoted(site.server.role)
    yield warning(
        "session_settings",
        f"Not in force on the relay's connections: {', '.join(sorted(wanted))}.",
        "A pooler has dropped them, or statement_timeout = 0 leaves them to the role. A bad plan or a hanging "
        "statement then holds up a worker. With another style or isolation, statements fail.",
        "\n".join(f"ALTER ROLE {role} SET {name} = '{value}';" for name, value in sorted(wanted.items())),
    )


def timeline(site: Site) -> Results:
    """Whether a standby has taken over, or a backup was restored."""
    for row in site.look("timeline", fresh=FRESH):
        moved = row.timeline != row.now
        if not moved and not row.fresh:
            yield Fine("the server is on the timeline that it was on")
            continue
        before, since = (row.timeline, "just now") if moved else (row.before, row.changed[:19].replace("T", " "))
        yield warning(
            "timeline_changed",
            f"The database is on timeline {row.now}; it was on {before} (noticed {since}).",
            "A standby took over, or a backup was restored. What was committed last before that may be gone: messages, "
            "and the knowledge that others were delivered. Those are delivered again.",
            "docs/reliability.md, A failover or a restore, says what to compare and what to replay.",
        )


def settings(site: Site) -> Results:
    """Whether a setting stands in two places, with two databases or two brokers."""
    found = [
        (warning if two.breaks else note)(
            "two_places",
            two.fact,
            f"Workers and commands use what {two.used} names. What goes to the other place stays there."
            if two.breaks
            else "The first value counts.",
            "Take out the value that is not meant.",
        )
        for two in two_places(site.settings, site.installed)
    ]
    return or_fine(found, "no two settings name two places")


def clock(site: Site) -> Results:
    """Whether this host's clock agrees with the database's."""
    yield compared("database", lambda: site.store.ask("act/now.sql")[0].now.timestamp())
