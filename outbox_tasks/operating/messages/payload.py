"""Payloads as people read and mend them."""

from __future__ import annotations

import json
from typing import Any

LONGER_AT_MOST = 20
"""JSON that would be longer than so many times on several lines is nested deeply, and its lines little but spaces."""


def laid_out(payload: bytes) -> str | None:
    """A payload as text, JSON on several lines if that changes only spaces: no digits of a number, and no key that is
    there twice. None if it is not text."""
    try:
        text = payload.decode()
    except ValueError:
        return None
    if "\0" in text:
        return None
    try:
        lines = ""
        for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(json.loads(text)):
            lines += part
            if len(lines) > LONGER_AT_MOST * len(text) + 100:
                return text
        lines.encode()  # half a character has no bytes
        return lines if _exact(lines) == _exact(text) else text
    except (ValueError, RecursionError):
        return text


def mended(former: bytes, written: str) -> bytes:
    """The payload that a person made of `laid_out(former)`. What is JSON again is stored in one line."""
    lines = laid_out(former)
    if written == lines or former.decode() == lines:
        return former if written == lines else written.encode()
    try:
        short = json.dumps(json.loads(written), ensure_ascii=False, separators=(",", ":"))
        return (short if _exact(short) == _exact(written) else written).encode()
    except (ValueError, RecursionError):
        return written.encode()  # refused later, if it must be JSON


def _exact(text: str) -> Any:
    """JSON with its numbers as they are written, and all keys."""
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=list)
