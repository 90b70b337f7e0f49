"""The database server: whether it answers and takes writes, and whether our connections have the right settings."""

from __future__ import annotations

import json

import psycopg

from outbox_tasks.database.activity import LATE_SECONDS
from outbox_tasks.database.connection import SLOW_TRIP_SECONDS, lacks_rights
from outbox_tasks.database.engine import PIPE
from outbox_tasks.database.schema import quoted
from outbox_tasks.errors import ConfigurationError, DatabaseUnavailable
from outbox_tasks.operating.problems.problem import Problem, error, note, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.operating.two_places import two_places
from outbox_tasks.relay.store.processes import holder
from outbox_tasks.text import moment, redacted

WANTED = {name: value for name, value in PIPE.items() if name != "TimeZone"}
"""The settings that our statements need. With ISO style the time zone does not matter."""


def reach(site: Site) -> Problems:
    """Whether the database answers. Without that, no other check can run."""
    try:
        row = site.server
    except ConfigurationError as refused:
        yield error(
            "settings", str(refused), "Without it nothing can be asked of the database.", "Set OUTBOX_DATABASE_URL."
        )
        return
    except DatabaseUnavailable as away:
        yield _away(site, away)
        return
    site.reached.add("server")
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
    else:
        site.reached.add("writes")


def _slow(site: Site) -> Problems:
    seconds = site.store.round_trip()
    if seconds >= SLOW_TRIP_SECONDS:
        yield error(
            "database_slow",
            f"The database is slow: a round trip takes {seconds:.1f} s.",
            "A claim takes several round trips, and so do begin and settle. Messages arrive late, or not at all: "
            "beyond statement_timeout.",
            "Check the network, a proxy or pooler between, and how busy the server is "
            "(SELECT state, wait_event_type, count(*) FROM pg_stat_activity GROUP BY 1, 2).",
        )


def _away(site: Site, away: DatabaseUnavailable) -> Problem:
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


def writes(site: Site) -> Problems:
    """Whether a write succeeds. It is rolled back."""
    probe = json.dumps([{"name": f"probe of {holder()}", "kind": "probe", "ago": 0.0, "facts": {}}])
    try:
        with site.store.rolled_back(2.0) as run:
            run("report/beat.sql", seen=probe, late=LATE_SECONDS)
    except (DatabaseUnavailable, psycopg.Error) as refused:
        if isinstance(refused, DatabaseUnavailable) and lacks_rights(refused):
            return  # a role that may only look; `rights_missing` says whether the relay's own lacks any
        reason = refused.reason if isinstance(refused, DatabaseUnavailable) else str(refused).partition("\n")[0]
        yield error(
            "database_refuses_writes",
            f"The database answers, and refuses to write: {reason}.",
            "Nothing can be claimed, begun or settled. A full disk, a lock or a trigger may be the reason.",
            "Mend what the database says. See its log, and the free space of its disk.",
        )


def session(site: Site) -> Problems:
    """Whether the relay's connections have the settings that it needs."""
    names = ["statement_timeout", *WANTED]
    in_force = {row.name: row.setting for row in site.look("settings", names=names)}
    limit = site.settings.statement_timeout or 3.0
    # A DateStyle such as `ISO, MDY`: the order of day and month does not matter.
    missing = {
        name: value for name, value in WANTED.items() if in_force.get(name, "").split(",")[0] != value.split(",")[0]
    }
    if in_force.get("statement_timeout") == "0":
        missing["statement_timeout"] = f"{limit * 1000:.0f}"
    if missing:
        role = quoted(site.server.role)
        yield warning(
            "session_settings",
            f"Not in force on the relay's connections: {', '.join(sorted(missing))}.",
            "A pooler has dropped them, or statement_timeout = 0 leaves them to the role. A bad plan or a hanging "
            "statement then holds up a worker. With another style or isolation, statements fail.",
            "\n".join(f"ALTER ROLE {role} SET {name} = '{value}';" for name, value in sorted(missing.items())),
        )


def timeline(site: Site) -> Problems:
    """Whether a standby has taken over, or a backup was restored."""
    for row in site.look("timeline", fresh=7 * 86_400.0):  # told for a week
        yield warning(
            "timeline_changed",
            f"The database is on timeline {row.timeline}; it was on {row.before} (noticed {moment(row.changed)}).",
            "A standby took over, or a backup was restored. What was committed last before that may be gone: messages, "
            "and the knowledge that others were delivered. Those are delivered again.",
            "docs/reliability.md, A failover or a restore, says what to compare and what to replay.",
        )


def settings(site: Site) -> Problems:
    """Whether a setting stands in two places, with two databases or two brokers."""
    for places in two_places(site.settings, site.installed):
        yield (warning if places.breaks else note)(
            "two_places",
            places.fact,
            f"Workers and commands use what {places.used} names. What goes to the other place stays there."
            if places.breaks
            else "The first value counts.",
            "Take out the value that is not meant.",
            which=places.ignored,
        )
