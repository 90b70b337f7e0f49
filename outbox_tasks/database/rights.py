"""What each database role may do: the one list. `init` grants it, and the doctor looks for what the relay lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Literal

from outbox_tasks.database.schema import Tables

Kind = Literal["writer", "worker", "relay", "operator", "reader"]

COMPLETED = "UPDATE (count, facts, closed_at)"
"""Of entries in the audit. A trigger says of which: see migration 12."""

TAKEN = "UPDATE (lease, locked_by, locked_until)"
"""Of acts in the background. What they do stays as their audit entry says."""

CHANGED = ("SELECT", "INSERT", "UPDATE", "DELETE")
READ = ("SELECT",)

GIVEN: dict[Kind, dict[str, tuple[str, ...]]] = {
    "writer": {"messages": ("INSERT",), "sequence": ("USAGE", "SELECT")},
    "worker": {
        "messages": CHANGED,
        "archive": ("SELECT", "INSERT"),
        "inbox": ("SELECT", "INSERT"),
        "versions": READ,
        "sequence": ("USAGE", "SELECT"),
    },
    "relay": {
        "others": CHANGED,
        "messages": ("SELECT", "UPDATE", "DELETE"),
        "inbox": ("SELECT", "UPDATE", "DELETE"),
        "audit": ("SELECT", "DELETE", COMPLETED),
        "acts": ("SELECT", "DELETE", TAKEN),
        "versions": READ,
        "sequence": READ,
    },
    "operator": {
        "others": CHANGED,
        "archive": ("SELECT", "INSERT"),
        "audit": ("SELECT", "INSERT (who, why, action, target, count, facts, once, closed_at)", COMPLETED),
        "acts": ("SELECT", "INSERT", "DELETE", TAKEN),
        "inbox": (),
        **dict.fromkeys(("slots", "publishers", "tallies", "heartbeats", "alerts", "versions", "view"), READ),
        "sequence": ("USAGE", "SELECT"),
    },
    "reader": dict.fromkeys(
        ("messages", "archive", "destinations", "slots", "publishers", "tallies", "heartbeats", "alerts", "versions",
         "view", "sequence"),
        READ,
    ),
}  # fmt: skip
"""The privileges of each role, by the fields of `Tables`. `others`: on every table without an entry, also on those of
later releases."""

HIDDEN = {"payload", "headers", "history"}
"""Columns that a reader does not see: they have what the application wrote, or quote it."""

MADE = ("outbox_uuid7", "outbox_key_class", "outbox_all_keys")
"""The functions that the defaults and triggers of a message call."""

COMPUTED = (*MADE, "outbox_readable", "outbox_error_group", "outbox_identity", "outbox_noted", "outbox_envelope")
"""The functions that work with the rights of their caller."""


HOUSEKEEPING = (
    "outbox_archive_prepare", "outbox_archive_make_day", "outbox_archive_renew_default", "outbox_archive_await_settles",
    "outbox_archive_detach", "outbox_archive_drop", "outbox_archive_share",
)  # fmt: skip
"""The functions that make and drop partitions of the archive, with the rights of their owner."""


def rights(t: Tables, kind: Kind) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a role may do: each table, the view and the sequence, with the privileges on it."""
    given = GIVEN[kind]
    for field in fields(t):
        yield getattr(t, field.name).name, given.get(field.name, given.get("others", ()))
    yield "outbox_all", given.get("view", ())
    yield f"{t.messages.name}_seq_seq", given.get("sequence", ())


def functions(kind: Kind) -> tuple[str, ...]:
    """The names of the functions that a role may call."""
    if kind == "writer":
        return (*MADE, "outbox_publish", "outbox_cancel")
    return COMPUTED + HOUSEKEEPING if kind == "relay" else COMPUTED
