"""Long transactions of others: they keep dead rows, and hold up messages with keys."""

from __future__ import annotations

import json
from typing import Any

from outbox_tasks.database.schema import quoted
from outbox_tasks.operating.problems.problem import error, note, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.text import one_line, span

SHOWN = 5
"""Sessions that are named; the others are counted."""

ALL_KEYS_SECONDS = 10.0
"""Seconds after which a transaction that holds up all keys is told."""

AGED = 1_000_000
"""Number of transactions for which a standby may keep dead rows."""

KEEPS = "While it lasts, vacuum removes no younger dead row from any table: claims step over more and more of them."


def open_for_long(site: Site) -> Problems:
    """Whether a session has had a transaction open for longer than `stale_after`, or holds up all keys."""
    begun = [row for row in site.sessions if row.age is not None]
    old = [row for row in begun if row.age > site.long]
    late = {True: min(ALL_KEYS_SECONDS, site.long), False: site.long}
    writers = [row for row in begun if row.keys and row.age > late[row.all_keys]]
    if holding := [row for row in old if row.holds]:
        yield warning(
            "xmin_held",
            f"{_named(holding)} has a transaction open that keeps dead rows.",
            f"{KEEPS} Mostly it is a report, a backup, or a session that was forgotten.",
            _ended(holding) + "Read long reports from a standby; set idle_in_transaction_session_timeout.",
            since=holding[0].age,
        )
    yield from _writers(writers)
    reported = holding + writers
    if idle := [r for r in old if r.state.startswith("idle in transaction") and r not in reported]:
        yield note(
            "idle_in_transaction",
            f"{_named(idle)} is idle in a transaction.",
            "It holds a connection and its locks; a migration of the tables would wait for it.",
            _ended(idle) + "Set idle_in_transaction_session_timeout for its role.",
        )
    yield from _hidden(site)


def _writers(rows: list[Any]) -> Problems:
    """Sessions that have published messages with keys: other writers' messages of these keys wait for them."""
    if of_all_keys := [row for row in rows if row.all_keys]:
        yield warning(
            "writer_open",
            f"{_named(of_all_keys)} has written messages with more than 32 keys, and not yet committed.",
            "Messages of all keys and destinations that were written later wait for it, so that none overtakes. They "
            "will be stale.",
            _ended(of_all_keys) + "Write so many keys in transactions of some seconds.",
            since=of_all_keys[0].age,
        )
    if of_some := [row for row in rows if not row.all_keys]:
        keys = of_some[0].keys
        yield warning(
            "writer_open",
            f"{_named(of_some)} has written messages with {keys} key{'s' * (keys > 1)}, and not yet committed.",
            "Messages of the same keys that were written later wait for it, so that none overtakes. They will be "
            "stale.",
            _ended(of_some) + "Keep transactions that publish short.",
            which="keys",
            since=of_some[0].age,
        )


def _hidden(site: Site) -> Problems:
    if hidden := sum(row.hidden for row in site.sessions):
        yield note(
            "sessions_hidden",
            f"Sessions of other roles that the relay's role may not look into: {hidden}.",
            "One of them may hold something up; the doctor can't know.",
            f"GRANT pg_read_all_stats TO {quoted(site.server.role)};",
        )


def strangers(site: Site) -> Problems:
    """Whether a session holds an advisory lock of the outbox, though its role has no right on the outbox."""
    for row in site.look("locks", destinations=json.dumps(list(site.settings.destinations))):
        since = "" if row.age is None else f", for {span(row.age)}"
        yield error(
            "lock_of_a_stranger",
            f"The session {row.pid} ({row.application or 'a client'}, role {row.role}{since}) holds an advisory lock "
            "of the outbox, and its role has no right there.",
            f"These wait for it: {row.what}. Anybody who may connect to the database can take such a lock, on purpose "
            "or by chance.",
            _ended([row])
            + f"REVOKE CONNECT ON DATABASE {quoted(site.server.database)} FROM PUBLIC, {quoted(row.role)};",
            which=str(row.pid),
        )


def prepared(site: Site) -> Problems:
    """Whether nobody has ended a prepared transaction."""
    rows = site.look("prepared", long=site.long)
    if not rows:
        return
    names = ", ".join(f"{row.gid!r} of {row.owner} ({span(row.age)})" for row in rows[:SHOWN])
    yield warning(
        "prepared_transaction",
        f"Prepared transactions that nobody has committed or rolled back ({len(rows)}): {names}.",
        f"{KEEPS} They also outlive a restart of the server."
        + " A later message under the same keys waits for them." * any(row.keys for row in rows),
        "\n".join(f"ROLLBACK PREPARED {_literal(row.gid)};  -- or COMMIT PREPARED" for row in rows[:SHOWN]),
    )


def _literal(name: str) -> str:
    """A name as a literal of SQL in one line. Anybody may have chosen the name, and people copy the statement."""
    return "'" + one_line(name).replace("'", "''") + "'"


def slots(site: Site) -> Problems:
    """Whether replication slots keep dead rows for a standby."""
    for row in site.look("slots"):
        if row.active and row.age <= AGED:
            continue
        what = f"for {row.age:,} transactions" if row.active else "for a standby that is not connected"
        yield warning(
            "slot_holds_rows",
            f"The replication slot {row.name!r} keeps dead rows {what}.",
            KEEPS,
            f"Bring the standby back, or if it is gone: SELECT pg_drop_replication_slot('{row.name}');",
            which=row.name,
        )


def oldest_snapshot(site: Site) -> tuple[str, str]:
    """Which session holds the oldest snapshot, since when, and how to end it; no remedy if there is none."""
    row = max((row for row in site.sessions if row.snapshot is not None), key=lambda row: row.snapshot, default=None)
    if row is None:
        return "No session holds a snapshot now.", ""
    hidden = row.age is None
    since = "since when is hidden" if hidden else f"for {span(row.age)}"
    holder = f"session {row.pid} ({row.application or 'a client'}, role {row.role}, {since})"
    more = f"\nGRANT pg_read_all_stats TO {quoted(site.server.role)};  -- to see more of it" if hidden else ""
    return f"The oldest snapshot is held by the {holder}.", f"SELECT pg_terminate_backend({row.pid});{more}"


def _named(rows: list[Any]) -> str:
    row = rows[0]
    who = f"{row.application or 'a client'}, role {row.role}"
    others = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"The session {row.pid} ({who}, for {span(row.age)}{others})"


def _ended(rows: list[Any]) -> str:
    return "".join(f"SELECT pg_terminate_backend({row.pid});\n" for row in rows[:SHOWN])
