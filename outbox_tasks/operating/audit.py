"""The audit: who did what, and why. Its statements are in sql/audit and sql/act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox_tasks.text import many, moment, one_line

FORM = "form"
"""The fact that tells the form of an act from another one with the same token."""

CHANGED_KEPT = 1_000
"""A redrive keeps the ids of so many messages that it has changed: the first ones. See sql/act/redrive.sql."""

DOING = {"redrive": "redriving", "try": "trying", "discard": "discarding", "purge": "deleting", "replay": "replaying"}
"""Acts on messages, and what they are while they are under way."""

PHRASES = {
    "stopped": "stopped by {}", "error": "failed: {}", "missed": "{} not changed", "named": "{} named", "states": "{}",
    "destination": "destination {}", "event_type": "type {}", "key": "key {}",
    "since": "sent since {}",
    "until": "sent until {}", "to": "to {}", "new_ids": "with new ids", "limit": "at most {}", "rate": "{} a second",
    "seconds": "in {} s", "older_than": "older than {} s", "newer_than": "newer than {} s",
}  # fmt: skip
"""Facts in words, in the order in which they are told. Others come last, by their names."""

LEFT_OUT = ("not_changed", "place")
"""Facts for programs."""


def deed(act: Mapping[str, Any]) -> str:
    """What an act did, without its target: `redrive 12 messages`."""
    alone = act["action"] not in DOING or (act["target"] and act["count"] == 1)
    return str(act["action"]) if alone else f"{act['action']} {many(act['count'], 'message')}"


def facts_of(act: Mapping[str, Any]) -> str:
    """The facts of an act in one line: which messages it was for, for example."""
    facts = act["facts"]
    names = [name for name in (*PHRASES, *facts) if name in facts and name not in LEFT_OUT]
    return ", ".join(_phrase(name, facts[name]) for name in dict.fromkeys(names))


def under_way(act: Mapping[str, Any]) -> str:
    """What somebody is doing at this moment: `anna is redriving 1,200 messages of orders since … (300 so far)`.
    `act`: see sql/act/going.sql."""
    total = many(act["total"], "message") if act["total"] is not None else "messages"
    target = act["wanted"].get("filter", {}).get("destination")
    what = f"{DOING.get(act['action'], act['action'])} {total}{f' of {one_line(str(target))}' if target else ''}"
    return f"{one_line(act['who'])} is {what} since {moment(act['at'])} ({act['count']:,} so far)"


def _phrase(name: str, value: Any) -> str:
    """A fact in words. It may be anything: somebody may have written the entry by hand."""
    if isinstance(value, float):
        value = f"{value:g}"
    elif isinstance(value, list):
        value = ", ".join(map(str, value))
    return PHRASES.get(name, f"{name.replace('_', ' ')} {{}}").replace("{}", str(value), 1)
