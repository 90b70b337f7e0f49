"""The life of one message in words, for a terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outbox_tasks.text import one_line

UNTIL = {
    "scheduled": "due", "retrying": "due", "leased": "leased until", "handed over": "begins before",
    "running": "leased until",
}  # fmt: skip
"""What the time in `locked_until` means, by the state."""

HISTORY_KEPT = 30
"""Entries of a history that are kept: the first one, and the last ones."""

KINDS = {"failed": "warn", "outage": "warn", "retried": "warn", "dead": "bad", "returned": "good", "sent": "good"}
"""How good it is that something happened, if it is not just to be noted."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a message."""

    at: datetime | str
    """A text, if nobody can read it as a time: a writer may have put anything into a history."""
    text: str
    kind: str = "note"
    """good, note, warn or bad."""


def life(one: dict[str, Any]) -> list[Event]:
    """What happened to a message of `Lookup.one`, in order."""
    return list(_events(one))


def _events(one: dict[str, Any]) -> Iterator[Event]:
    yield Event(one["created_at"], "written")
    for entry in one["history"]:
        yield Event(_moment(str(entry.get("at", ""))), _words(entry), KINDS.get(str(entry.get("what")), "note"))
    if one["state"] == "sent":
        yield Event(one["finished_at"], f"sent by {one['locked_by'] or 'nobody known'}", "good")
    elif one["finished_at"] and not any(entry.get("what") == "discarded" for entry in one["history"]):
        yield Event(one["finished_at"], f"discarded: {error_of(one)}")


def tracebacks(one: dict[str, Any]) -> list[str]:
    """Those of its errors, the last one last."""
    return [str(entry["traceback"]) for entry in one["history"] if entry.get("traceback")]


def error_of(message: dict[str, Any]) -> str:
    return one_line(": ".join(filter(None, (message["last_error_code"], message["last_error"]))))


def _moment(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return text


def _words(entry: dict[str, Any]) -> str:
    text = str(entry.get("what", "?"))
    if entry.get("attempt"):
        attempt = f"attempt {entry['attempt']}"
        text = f"{attempt} {text}" if text in ("failed", "outage") else f"{text} after {attempt}"
    if "by" in entry:
        text += f" by {entry['by']}"
    parts = [str(entry[name]) for name in ("code", "error", "why") if entry.get(name)]
    return ": ".join([text, *parts])
