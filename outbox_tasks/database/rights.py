"""What each database role may do: the one list. `init` grants it, and the doctor looks for what the relay lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from outbox_tasks.satellites import satellites

Kind = Literal["writer", "worker", "relay", "operator", "reader"]

COMPLETED = "UPDATE (count, facts, closed_at)"
"""Of entries in the audit. A trigger says of which: see sql/people.sql."""

REWRITTEN = "UPDATE (payload, headers, content_type, deliver_at)"
"""Of a supervised task that asks to run again. A trigger keeps what has ended: see sql/private.sql."""

EDITED = "UPDATE (payload, content_type)"
"""Of a dead letter."""

TAKEN = "UPDATE (place, due)"
"""Of acts in the background. What they do stays as their audit entry says."""

CHANGED = ("SELECT", "INSERT", "UPDATE", "DELETE")
READ = ("SELECT",)

WORK = ("ready", "waiting", "held", "keys", "leases", "drains", "runs", "dead", "trouble")
"""The tables in which messages at work are, and what a claim must know of them."""

VIEWS = ("at_work", "archive", "all")

PEOPLE = ("destinations", "tallies", "sends", "heartbeats", "alerts")

ADDED = {table: given for each in satellites().values() for table, given in each.rights.items()}
"""The tables of satellites, with the privileges of each role."""

RELATIONS = (
    "messages", *WORK, "journal", "days", *PEOPLE, "limits", "inbox", "audit", "acts", "versions",
    *VIEWS, "seq", *ADDED,
)  # fmt: skip
"""All tables, views and the sequence, without `outbox_` before their names."""

GIVEN: dict[Kind, dict[str, tuple[str, ...]]] = {
    "writer": {},  # it calls functions that have the rights of their owner
    "worker": {
        "messages": ("SELECT", REWRITTEN),
        **dict.fromkeys(("keys", "leases", "runs"), CHANGED),
        **dict.fromkeys(("dead", "trouble"), ("SELECT", "INSERT", "UPDATE")),
        **dict.fromkeys(("waiting", "held"), ("SELECT", "INSERT")),
        "ready": ("INSERT",),
        "journal": ("SELECT", "INSERT"),
        "inbox": ("SELECT", "INSERT"),
        **dict.fromkeys(("versions", "seq", "at_work", "archive"), READ),
    },
    "relay": {
        **dict.fromkeys((*WORK, *PEOPLE), CHANGED),
        "messages": READ,
        "journal": ("SELECT", "INSERT"),
        "inbox": ("SELECT", "UPDATE", "DELETE"),
        "audit": ("SELECT", "DELETE", COMPLETED),
        "acts": ("SELECT", "DELETE", TAKEN),
        **dict.fromkeys(("days", "limits", "versions", "seq", *VIEWS), READ),
    },
    "operator": {
        "messages": ("SELECT", "INSERT", EDITED, "DELETE"),
        **dict.fromkeys(("ready", "waiting", "held", "keys", "trouble"), CHANGED),
        **dict.fromkeys(("leases", "runs", "dead"), ("SELECT", "UPDATE", "DELETE")),
        **dict.fromkeys(("destinations", "limits"), CHANGED),
        "drains": READ,
        "journal": ("SELECT", "INSERT"),
        "audit": ("SELECT", "INSERT (who, why, action, target, count, facts, once, closed_at)", COMPLETED),
        "acts": ("SELECT", "INSERT", "DELETE", TAKEN),
        **dict.fromkeys(("tallies", "sends", "heartbeats", "alerts", "days", "versions", *VIEWS), READ),
        "seq": ("USAGE", "SELECT"),
    },
    "reader": {
        **dict.fromkeys(("messages", *WORK, "journal", "days", *PEOPLE, "limits", "versions", *VIEWS, "seq"), READ),
        "acts": READ,
        "audit": ("SELECT (seq, at, who, why, action, target, count)",),
    },
}
"""The privileges of each role."""

HIDDEN = {"payload", "headers", "history"}
"""Columns that a reader does not see: they have what the application wrote, or quote it."""

WRITTEN = ("outbox_publish", "outbox_cancel", "outbox_write", "outbox_write_one")
"""What writers call. These have the rights of their owner."""

COMPUTED = (
    "outbox_uuid7", "outbox_number", "outbox_ordered", "outbox_key_class", "outbox_all_keys", "outbox_readable",
    "outbox_error_group", "outbox_identity", "outbox_noted", "outbox_envelope", "outbox_task_queue", "outbox_free",
    "outbox_discard", "outbox_goes_alone", "outbox_is_shut", "outbox_leased_messages", "outbox_open_writers",
    "outbox_about", "outbox_comes_next", "outbox_next_destination", "outbox_take_held", "outbox_take_new",
)  # fmt: skip
"""The functions that work with the rights of their caller."""

MEASURED = ("outbox_backlog",)
"""What autoscalers and dashboards ask, with the rights of its owner."""

HOUSEKEEPING = ("outbox_day_turn", "outbox_day_make", "outbox_day_drop")
"""The functions that make and drop days, with the rights of their owner."""


def rights(kind: Kind) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a role may do: each table, view and sequence, with the privileges on it."""
    for name in RELATIONS:
        yield f"outbox_{name}", ADDED[name].get(kind, ()) if name in ADDED else GIVEN[kind].get(name, ())


def functions(kind: Kind) -> tuple[str, ...]:
    """The names of the functions that a role may call."""
    if kind == "writer":
        return WRITTEN
    own = {
        "relay": (*HOUSEKEEPING, "outbox_write"), "worker": ("outbox_write",), "operator": MEASURED, "reader": MEASURED,
    }  # fmt: skip
    return COMPUTED + own[kind]
