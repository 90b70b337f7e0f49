"""Payloads as people read and mend them."""

from __future__ import annotations

import json
from typing import Any

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
    known = lossless(payload)
    if known is None or _too_deep(known[0]):
        return text
    return json.dumps(known[0], ensure_ascii=False, indent=2)


def mended(former: bytes, written: str) -> bytes:
    """The payload that a person made of `laid_out(former)`. JSON is stored with the spacing that it had, if that
    changes nothing else."""
    known = lossless(former)
    if known is None or written == laid_out(former):
        return former if written == laid_out(former) else written.encode()
    try:
        short = json.dumps(json.loads(written), ensure_ascii=False, separators=known[1])
        return (short if _exact(short) == _exact(written) else written).encode()
    except (ValueError, RecursionError):
        return written.encode()  # refused later, if it must be JSON


def hexadecimal(payload: bytes, lines: int) -> str:
    """The first bytes as numbers, sixteen on a line, and as the characters that they may be."""
    rows = (payload[n : n + 16] for n in range(0, min(len(payload), 16 * lines), 16))
    return "\n".join(f"{16 * n:06x}  {row.hex(' '):<47}  {_ascii(row)}" for n, row in enumerate(rows))


def _too_deep(value: Any) -> bool:
    """Whether a value is nested so deeply that its lines would be little but spaces, and a hundred times as long."""
    level = [value] if _has_parts(value) else []
    for _ in range(50):
        parts = (part for nested in level for part in (nested.values() if isinstance(nested, dict) else nested))
        level = [part for part in parts if _has_parts(part)]
    return bool(level)


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list)


def _exact(text: str) -> Any:
    """JSON with its numbers as they are written, and all keys."""
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=list)


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
