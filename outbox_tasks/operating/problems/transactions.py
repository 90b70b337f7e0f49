"""Long transactions of others: they keep dead rows, and hold up messages with keys."""

from __future__ import annotations

import json
from typing import Any

from outbox_tasks.database.schema import quoted
from outbox_tasks.operating.problems.problem import Problem, error, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.text import many, one_line, span

SESSIONS_NAMED = 5
"""Sessions and prepared transactions that a remedy ends; the others are counted."""

ALL_KEYS_SECONDS = 10.0
"""A transaction that holds up the messages of all keys is a problem after this time already."""

KEEPS = "While it lasts, vacuum removes no younger dead row from any table: claims step over more and more of them."


def open_for_long(site: Site) -> Problems:
    """Whether a session has had a transaction open for longer than `stale_after`, or holds up all keys."""
    begun = [row for row in site.sessions if row.age is not None]
    if holding := [row for row in begun if row.holds and row.age > site.settings.stale_after]:
        yield warning(
            "xmin_held",
            f"{_named(holding)} has a transaction open that keeps dead rows.",
            f"{KEEPS} Mostly it is a report, a backup, or a session that was forgotten.",
            _ended(holding) + "Read long reports from a standby; set idle_in_transaction_session_timeout.",
            since=holding[0].age,
        )
    all_keys_late = min(ALL_KEYS_SECONDS, site.settings.stale_after)
    if of_all_keys := [row for row in begun if row.all_keys and row.age > all_keys_late]:
        yield _writer(
            of_all_keys, "more than 32 keys", "Messages of all keys and destinations", "Write so many keys in "
            "transactions of some seconds.", which="",
        )  # fmt: skip
    of_some_keys = [row for row in begun if row.keys and not row.all_keys and row.age > site.settings.stale_after]
    if of_some_keys:
        yield _writer(
            of_some_keys, many(of_some_keys[0].keys, "key"), "Messages of the same keys", "Keep transactions that "
            "publish short.", which="keys",
        )  # fmt: skip


def _writer(rows: list[Any], keys: str, waiting: str, advice: str, which: str) -> Problem:
    return warning(
        "writer_open",
        f"{_named(rows)} has written messages with {keys}, and not yet committed.",
        f"{waiting} that were written later wait for it, so that none overtakes. They will be stale.",
        _ended(rows) + advice,
        which=which,
        since=rows[0].age,
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
    rows = site.look("prepared", long=site.settings.stale_after)
    if not rows:
        return
    names = ", ".join(f"{row.gid!r} of {row.owner} ({span(row.age)})" for row in rows[:SESSIONS_NAMED])
    yield warning(
        "prepared_transaction",
        f"Prepared transactions that nobody has committed or rolled back ({len(rows)}): {names}.",
        f"{KEEPS} They also outlive a restart of the server."
        + " A later message under the same keys waits for them." * any(row.keys for row in rows),
        "\n".join(f"ROLLBACK PREPARED {_literal(row.gid)};  -- or COMMIT PREPARED" for row in rows[:SESSIONS_NAMED]),
    )


def _literal(name: str) -> str:
    """A name as a literal of SQL in one line. Anybody may have chosen the name, and people copy the statement."""
    return "'" + one_line(name).replace("'", "''") + "'"


def oldest_snapshot(site: Site) -> tuple[str, str]:
    """Which session holds the oldest snapshot, since when, and how to end it; no remedy if there is none."""
    row = max((row for row in site.sessions if row.snapshot is not None), key=lambda row: row.snapshot, default=None)
    if row is None:
        return "No session holds a snapshot now.", ""
    since = "" if row.age is None else f", for {span(row.age)}"
    holder = f"session {row.pid} ({row.application or 'a client'}, role {row.role}{since})"
    return f"The oldest snapshot is held by the {holder}.", f"SELECT pg_terminate_backend({row.pid});"


def _named(rows: list[Any]) -> str:
    row = rows[0]
    client = f"{row.application or 'a client'}, role {row.role}"
    others = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"The session {row.pid} ({client}, for {span(row.age)}{others})"


def _ended(rows: list[Any]) -> str:
    return "".join(f"SELECT pg_terminate_backend({row.pid});\n" for row in rows[:SESSIONS_NAMED])
