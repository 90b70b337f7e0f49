"""How a payload is shown on a terminal."""

from __future__ import annotations

from outbox_tasks.operating.messages.payload import hexadecimal, laid_out
from outbox_tasks.text import printable

LONGEST = 64 * 1024
"""Bytes of a payload that a terminal gets. A pipe gets all of it."""

HEX_LINES = 32


def shown_payload(payload: bytes) -> str:
    """Text, or the first bytes as hexadecimal numbers."""
    text = laid_out(payload)
    if text is None:
        return hexadecimal(payload, HEX_LINES) + _rest(len(payload) - 16 * HEX_LINES, "bytes")
    return printable(text[:LONGEST]) + _rest(len(text) - LONGEST, "characters")


def _rest(count: int, unit: str) -> str:
    return f"\n… and {count:,} {unit} more: --payload prints all of it" if count > 0 else ""
