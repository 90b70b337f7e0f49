"""The options of a destination's URL: `?name=value`. A publisher declares them as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from outbox_tasks.settings.destination import Destination


class Kind(NamedTuple):
    """What the value of an option may be."""

    rule: str
    """Says in an error what the value must be."""
    pattern: re.Pattern[str]
    read: Callable[[str], Any] = str
    several: bool = False
    """Whether the option may be repeated. Then its value is a list."""


Options = Mapping[str, Kind]
"""The options of a scheme by name. A name that ends in a dot stands for all names that begin with it."""


def matching(pattern: str, rule: str) -> Kind:
    return Kind(rule, re.compile(pattern))


def one_of(*choices: str) -> Kind:
    return matching("|".join(map(re.escape, choices)), " or ".join(choices))


def number(least: int, most: int) -> Kind:
    """A whole number between two bounds, without leading zeros."""

    def read(text: str) -> int:
        if not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return Kind(f"a number from {least} to {most}", re.compile("0|[1-9][0-9]{0,18}"), read)


FLAG = Kind("true or false", re.compile("true|false"), "true".__eq__)
TEXT = matching("(?s).+", "a text that is not empty")


def read(destination: Destination, known: Options, *, prefix: str = "") -> dict[str, Any]:
    """The options of the URL whose names have this prefix. Raises `ConfigurationError`, which shows none of their
    values."""
    values: dict[str, Any] = {}
    for name, text in destination.options:
        if not name.startswith(prefix):
            continue
        kind = known.get(name) or known.get(name.partition(".")[0] + ".")
        if kind is None:
            # The name stays hidden: where a password has a question mark, the name is a part of the password.
            rule = f"it has an unknown option. {destination.scheme}:// URLs have {', '.join(known) or 'none'}"
            raise destination.unusable(rule)
        try:
            if not kind.pattern.fullmatch(text):
                raise ValueError
            value = kind.read(text)
        except ValueError:
            raise destination.unusable(f"its option {name} must be {kind.rule}") from None
        if kind.several:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise destination.unusable(f"it has the option {name} twice")
        else:
            values[name] = value
    return values


def check(destination: Destination, *rules: tuple[object, str]) -> None:
    """Raises `ConfigurationError` with the first rule that does not hold."""
    for holds, rule in rules:
        if not holds:
            raise destination.unusable(rule)
