"""The audit: who did what, and why. Its statements are in sql/audit and sql/act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox_tasks.text import many

FORM = "form"
"""The fact that tells the form of an act from another one with the same token."""

KEPT = 1_000
"""A redrive keeps the ids of so many messages that it has changed: the first ones. See sql/act/redrive.sql."""


def deed(act: Mapping[str, Any]) -> str:
    """What an act did, without its target: `redrive 12 messages`."""
    alone = act["action"] in ("pause", "resume") or (act["target"] and act["count"] == 1)
    return str(act["action"]) if alone else f"{act['action']} {many(act['count'], 'message')}"


def facts_of(act: Mapping[str, Any]) -> str:
    """The facts of an act in one line: which messages it was for, for example."""

    def plain(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return ", ".join(f"{name.replace('_', ' ')} {plain(value)}" for name, value in act["facts"].items())
