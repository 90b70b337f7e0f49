"""How a payload is shown to people."""

from __future__ import annotations

import json
from typing import Any

from outbox_tasks.text import printable

LONGEST = 64 * 1024
"""Bytes of a payload that a terminal gets. A pipe gets all of it."""

HEX_LINES = 32

SPACINGS = ((",", ":"), (", ", ": "))
"""How JSON is written in one line: by this library, and by PostgreSQL."""


def lossless(payload: bytes) -> tuple[Any, tuple[str, str]] | None:
    """The value of a JSON text, and its spacing. None if a new layout would change more than spaces: the digits of a
    number, or a key that is there twice."""
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
    """A payload as text, JSON on several lines. None if it is not text."""
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
