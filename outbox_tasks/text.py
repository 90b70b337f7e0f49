"""Texts that others have written: what the database can store, and what people may see."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime


def is_text(value: object) -> bool:
    """Whether PostgreSQL can store it as text: no NUL, and no half of a surrogate pair."""
    return isinstance(value, str) and "\0" not in value and is_encodable(value)


def is_encodable(value: str) -> bool:
    """Whether it can be written as UTF-8: half of a surrogate pair can't."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: object) -> object:
    """A value as an error shows it: at most 40 characters."""
    return value[:40] + "…" if isinstance(value, str) and len(value) > 40 else value


def storable(text: str | None) -> str | None:
    """The text without NUL and halves of surrogate pairs, which PostgreSQL can't store."""
    return text and text.replace("\0", "\\0").encode("utf-8", "replace").decode("utf-8")


def said(error: object, say: Callable[[object], str] = str) -> str:
    """What an exception of others says. It may say nothing, or fail to."""
    for way in (say, repr):
        try:
            if text := way(error):
                return text
        except Exception:  # noqa: S112 - its own code raises, and its type says something, too
            continue
    return type(error).__name__


def span(seconds: float) -> str:
    """Seconds as people say them: 90 s, 3 min, 5 h, 4 d."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def number(count: float, *, estimated: bool = False) -> str:
    """A number that is read at a glance: 1,234 or 12k or 3.4M."""
    about = "~" if estimated else ""
    if count >= 999_500:
        return f"{about}{count / 1e6:.1f}M"
    if count >= (9_950 if estimated else 99_950):
        return f"{about}{count / 1e3:.0f}k"
    return f"{about}{count:,.1f}" if 0 < count < 9.95 and count != int(count) else f"{about}{count:,.0f}"


def moment(at: datetime) -> str:
    """A time as people are told it, everywhere: date and time, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def many(count: int, noun: str, shown: str | None = None) -> str:
    """A number of things in words: 1 message, 2 messages. `shown` replaces the number."""
    return f"{shown or f'{count:,}'} {noun}{'' if count == 1 else 's'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def shell_line(*words: str) -> str:
    """A command of ours, as bash and zsh take it. Control characters are codes, since a terminal would obey them when
    they are pasted."""
    return " ".join(map(_quoted, ("outbox-tasks", *words)))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _code(c) for c in plain) + "'"


def _code(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 128 else f"\\U{ord(character):08x}"


def printable(text: str) -> str:
    """The text without characters that would move the cursor, colour the screen or turn the line round."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """The same in one line."""
    return " ".join(printable(text).split())
