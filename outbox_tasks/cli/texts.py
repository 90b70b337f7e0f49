"""How times, payloads and what others have written are shown to people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from outbox_tasks.text import one_line, printable

if TYPE_CHECKING:
    from rich.text import Text

LONGEST = 64 * 1024
"""Bytes of a payload that are shown; all of it goes to a pipe."""

HEX_LINES = 32

SPACINGS = ((",", ":"), (", ", ": "))
"""How JSON is written in one line: by this library, and by PostgreSQL."""


def age(seconds: float) -> str:
    """A length of time in two or three characters: 45s, 12m, 3h, 9d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def ago(moment: datetime) -> str:
    """How long ago something was; or, with "in", how far ahead it is."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return age(seconds) if seconds >= 0 else f"in {age(-seconds)}"


def clock(moment: datetime) -> str:
    """A time for people, in the zone of this machine."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def cell(text: object, style: str = "") -> Text:
    """What others have written, in one line, for rich: never markup, and nothing that a terminal would obey."""
    from rich.text import Text

    return Text(one_line(str(text)), style)


def many(count: int, noun: str, shown: str | None = None) -> str:
    """So many of them, in words: 1 message, 2 messages. `shown` stands in place of the number."""
    return f"{shown or f'{count:,}'} {noun}{'' if count == 1 else 's'}"


def lossless(payload: bytes) -> tuple[Any, tuple[str, str]] | None:
    """The value of a JSON text and how it is spaced; None where laying it out anew would change more than spaces: a
    number's digits, a key that is there twice."""
    try:
        text = payload.decode()
        value = json.loads(text)
        for spacing in SPACINGS:
            if json.dumps(value, ensure_ascii=False, separators=spacing) == text:
                return value, spacing
    except (ValueError, RecursionError):
        pass
    return None


def laid_out(payload: bytes) -> str | None:
    """A payload as text, JSON on several lines; None if it is none."""
    try:
        text = payload.decode()
    except ValueError:
        return None
    if "\0" in text:
        return None
    found = lossless(payload)
    return text if found is None else json.dumps(found[0], ensure_ascii=False, indent=2)


def shown_payload(payload: bytes) -> str:
    """For a terminal: text, or the first bytes as hexadecimal numbers."""
    text = laid_out(payload)
    if text is None:
        shown = payload[: 16 * HEX_LINES]
        rows = (shown[n : n + 16] for n in range(0, len(shown), 16))
        lines = [f"{16 * n:06x}  {row.hex(' '):<47}  {_ascii(row)}" for n, row in enumerate(rows)]
        return "\n".join(lines) + _rest(len(payload) - len(shown), "bytes")
    return printable(text[:LONGEST]) + _rest(len(text) - LONGEST, "characters")


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


def _rest(count: int, unit: str) -> str:
    return f"\n… and {count:,} {unit} more: --payload prints all of it" if count > 0 else ""
