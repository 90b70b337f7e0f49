"""Filters as people write them: as options of the command line, in the address of a page, and as a command to copy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from outbox_tasks.errors import InvalidFilter
from outbox_tasks.operating.messages.find import DEAD, STATES, Filter
from outbox_tasks.text import is_text, shell_line, short

UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}

OLDEST_SECONDS = 36_500 * UNITS["d"]
"""PostgreSQL can't subtract much more from a time."""

GROUP = re.compile("[0-9a-f]{12}")

TEXTS = {"destination": "destination", "type": "event_type", "key": "key", "error": "code", "group": "group"}
AGES = {"older-than": "older_than", "newer-than": "newer_than"}
"""The names of people, and the fields of `Filter`."""

CHANGEABLE: Final = {
    "redrive": (DEAD,),
    "try": ("retrying",),
    "discard": (DEAD, "pending", "scheduled", "retrying", "handed over"),
}
"""The states of messages that an act can change, the usual one first. To discard a waiting message is to cancel it."""

DONE = {"redrive": "redriven", "try": "made due", "discard": "discarded", "purge": "deleted", "replay": "replayed"}
"""What was done to messages, by the act."""


def seconds_of(text: str) -> float:
    """A length of time such as 90s, 15m, 2h, 3d or 1w. Raises `InvalidFilter`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text)
    if match is None:
        raise InvalidFilter(reason=f"{short(text)!r} is not a length of time: write 90s, 15m, 2h, 3d or 1w")
    seconds = float(match[1]) * UNITS[match[2]]
    if seconds > OLDEST_SECONDS:
        raise InvalidFilter(reason=f"{short(text)!r} is too long: at most {OLDEST_SECONDS / UNITS['d']:.0f}d")
    return seconds


def written(seconds: float) -> str:
    """The same as `seconds_of` reads it."""
    unit = next((name for name, size in UNITS.items() if seconds % size == 0), "s")
    return f"{Decimal(repr(seconds / UNITS[unit])).normalize():f}{unit}"


def as_filter(states: Sequence[str], error: str | None, group: str | None = None, **given: Any) -> Filter:
    """The filter of these values. An error may also be an error group. Raises `InvalidFilter`."""
    if error is not None and GROUP.fullmatch(error):
        error, group = None, error
    for value in (error, group, *given.values()):
        if isinstance(value, str) and not (is_text(value) and len(value) <= 500):
            raise InvalidFilter(reason="a text has at most 500 characters, and no NUL")
    if (given.get("event_type") or "").count("*") > 5:  # each multiplies the time that a search takes
        raise InvalidFilter(reason="a pattern has at most 5 stars")
    if unknown := set(states).difference(STATES):
        raise InvalidFilter(reason=f"{short(min(unknown))!r} is no state: the states are {', '.join(STATES)}")
    if group is not None and states and DEAD not in states:
        raise InvalidFilter(reason="an error group is one of dead letters: it goes with the state dead alone")
    states = (DEAD,) if group is not None else tuple(states)
    return Filter(states=states, code=error, group=group, **given)


def asked(query: Mapping[str, Sequence[str]]) -> Filter:
    """The filter of an address: `state` (may be there again), `destination`, `type`, `key`, `error`, `group`,
    `older-than` and `newer-than`; what is empty counts as not given. Raises `InvalidFilter`."""
    texts = {field: value for name, field in TEXTS.items() if (value := _first(query, name)) is not None}
    ages = {field: seconds_of(value) for name, field in AGES.items() if (value := _first(query, name)) is not None}
    states = tuple(dict.fromkeys(state for value in query.get("state", ()) if (state := value.strip())))
    return as_filter(states, texts.pop("code", None), texts.pop("group", None), **texts, **ages)


def ids_of(texts: Iterable[str]) -> list[UUID]:
    """Ids, each once. Raises `InvalidFilter`."""
    try:
        return list(dict.fromkeys(UUID(text.strip()) for text in texts))
    except ValueError:
        raise InvalidFilter(reason="an id is a UUID such as 01a2005d-d753-78be-8d86-fb2c39ca288f") from None


def query_of(wanted: Filter) -> dict[str, Any]:
    """A filter as `asked` reads it."""
    texts = {name: getattr(wanted, field) for name, field in TEXTS.items()}
    ages = {name: written(age) for name, field in AGES.items() if (age := getattr(wanted, field)) is not None}
    query = {"state": list(wanted.states) or None, **texts, **ages}
    return {name: value for name, value in query.items() if value is not None}


def for_act(action: str, wanted: Filter, *, named: bool) -> Filter:
    """The filter with the states that the act is for: if none are given, the usual one; of `named` messages, all that
    it can change. Raises `InvalidFilter`."""
    able = CHANGEABLE[action]
    if not set(wanted.states) <= {*able}:
        raise InvalidFilter(reason=f"only messages in these states can be {DONE[action]}: {', '.join(able)}")
    return replace(wanted, states=wanted.states or (able if named else able[:1]))


def command_line(action: str, wanted: Filter, ids: Iterable[UUID] = ()) -> str:
    """The command that does the same, as a shell takes it."""
    named = [str(id) for id in ids]
    query = {} if named else query_of(wanted)
    states = query.pop("state", [])
    words = [action, *named, *(("--all",) if not (named or query) else ())]
    if "group" not in query and states != [*CHANGEABLE.get(action, ())[:1]]:
        words += [word for state in states for word in ("--state", state)]
    for name, value in query.items():
        # A value that begins with a dash would be read as an option.
        words += [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
    return shell_line(*words)


def _first(query: Mapping[str, Sequence[str]], name: str) -> str | None:
    return next((value for value in query.get(name, ()) if value.strip()), None)
