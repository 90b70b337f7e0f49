"""Transactions of others that are open for long: they keep dead rows, and hold back messages with keys."""

from __future__ import annotations

from typing import Any

from outbox_tasks.database.schema import quoted
from outbox_tasks.operating.doctor import statements
from outbox_tasks.operating.doctor.finding import Fine, lasting, note, warning
from outbox_tasks.operating.doctor.site import Results, Site

SHOWN = 5
"""So many are named; the others are counted."""

SOON = 10.0
"""Seconds after which a transaction that holds up all keys is told of."""

AGED = 1_000_000
"""Transactions for which a standby may hold back the removal of dead rows."""

KEEPS = "No dead row that is younger can be removed, from any table: claims step over more and more of them."


def open_for_long(site: Site) -> Results:
    """Sessions whose transaction has been open for longer than `stale_after`, or holds up all keys."""
    found = site.rows(statements.transactions(site.store.tables), long=site.long, soon=min(SOON, site.long))
    rows = [row for row in found if row.age > site.long]
    holding = [row for row in rows if row.holds]
    heeded = found if site.settings.await_writers else []
    of_all_keys = [row for row in heeded if row.all_keys]
    writing = [row for row in heeded if row.keys and not row.all_keys]
    if holding:
        yield warning(
            "xmin_held",
            f"{_named(holding)} has a transaction open that keeps dead rows.",
            f"{KEEPS} Mostly it is a report, a backup, or a session that was forgotten.",
            _ended(holding) + "Read long reports from a standby; set idle_in_transaction_session_timeout.",
        )
    if of_all_keys:
        yield warning(
            "writer_open",
            f"{_named(of_all_keys)} has written messages with more than 32 keys, and not yet committed.",
            "What was written after it began waits for it, under every key and to every destination, so that none "
            "overtakes. It will be stale.",
            _ended(of_all_keys)
            + "Write so many keys in transactions of some seconds; or, without that order, OUTBOX_AWAIT_WRITERS=false.",
        )
    if writing:
        yield warning(
            "writer_open",
            f"{_named(writing)} has written messages with {writing[0].keys} key{'s' * (writing[0].keys > 1)}, and not "
            "yet committed.",
            "Messages that were written later under the same keys wait for it, so that none overtakes. They will be "
            "stale.",
            _ended(writing)
            + "Keep transactions that publish short; or, without that order, OUTBOX_AWAIT_WRITERS=false.",
        )
    idle = [
        row
        for row in rows
        if (row.state or "").startswith("idle in transaction") and row not in holding + writing + of_all_keys
    ]
    if idle:
        yield note(
            "idle_in_transaction",
            f"{_named(idle)} is idle in a transaction.",
            "It holds a connection and its locks; a migration of the tables would wait for it.",
            _ended(idle) + "Set idle_in_transaction_session_timeout for its role.",
        )
    [[hidden]] = site.rows(statements.hidden())
    if hidden:
        [me] = site.rows(statements.server())
        yield note(
            "sessions_hidden",
            f"Sessions of other roles that can't be looked into: {hidden}.",
            "Whether one of them holds something up is not known.",
            f"GRANT pg_read_all_stats TO {quoted(me.role)};",
        )
    if not rows + of_all_keys:
        yield Fine(f"no transaction is older than {lasting(site.long)}")


def prepared(site: Site) -> Results:
    """Prepared transactions that nobody has ended."""
    rows = site.rows(statements.prepared(site.store.tables), long=site.long)
    if not rows:
        return
    names = ", ".join(f"{row.gid!r} of {row.owner} ({lasting(row.age)})" for row in rows[:SHOWN])
    yield warning(
        "prepared_transaction",
        f"Prepared transactions that nobody has committed or rolled back ({len(rows)}): {names}.",
        f"{KEEPS} They also outlive a restart of the server."
        + " What was written later under the same keys waits for them." * any(row.keys for row in rows),
        "\n".join(f"ROLLBACK PREPARED '{row.gid}';  -- or COMMIT PREPARED" for row in rows[:SHOWN]),
    )


def slots(site: Site) -> Results:
    """Replication slots that keep dead rows for a standby."""
    for row in site.rows(statements.slots()):
        if row.active and row.age <= AGED:
            continue
        what = f"for {row.age:,} transactions" if row.active else "for a standby that is not connected"
        yield warning(
            "slot_holds_rows",
            f"The replication slot {row.name!r} keeps dead rows {what}.",
            KEEPS,
            f"Bring the standby back, or if it is gone: SELECT pg_drop_replication_slot('{row.name}');",
        )


def _named(rows: list[Any]) -> str:
    row = rows[0]
    who = f"{row.application or 'a client'}, role {row.role}"
    others = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"The session {row.pid} ({who}, for {lasting(row.age)}{others})"


def _ended(rows: list[Any]) -> str:
    return "".join(f"SELECT pg_terminate_backend({row.pid});\n" for row in rows[:SHOWN])
