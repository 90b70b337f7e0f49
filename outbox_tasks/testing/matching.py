"""Which messages an assertion asks for, and what it says if they are not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic_core import to_jsonable_python

from outbox_tasks.testing.messages import SeenMessage


@dataclass(frozen=True)
class Wanted:
    """The message, or the task, that a test asks for."""

    name: str
    """Of its event type or task; `*` stands for any characters."""
    facts: Mapping[str, Any]
    """What is asked of it besides."""
    is_task: bool = False

    def is_named(self, message: SeenMessage) -> bool:
        """Whether it has the name."""
        return fnmatchcase(message.event_type, self.name) and not (self.is_task and message.task is None)

    def matches(self, message: SeenMessage) -> bool:
        """Whether it is a wanted one."""
        return self.is_named(message) and not any(self.differences(message))

    def differences(self, message: SeenMessage) -> Iterator[str]:
        """In what a message of this name differs from the wanted one."""
        if self.is_task and (task := message.task):
            return _compared("", self.facts, {"args": task.args, "kwargs": task.kwargs, "queue": task.queue})
        try:
            payload = message.json
        except ValueError:
            payload = message.text
        fields = payload if isinstance(payload, Mapping) else {}
        others = {"payload": payload, "key": message.key, "to": message.destination, "headers": message.headers}
        return _compared("", self.facts, {**fields, **others})

    def __str__(self) -> str:
        name = [] if self.name == "*" else [repr(self.name)]
        return ", ".join([*name, *(f"{fact}={value!r}" for fact, value in self.facts.items())])


def explained(call: str, wanted: Wanted, times: int | None, seen: Sequence[SeenMessage], hint: str) -> str:
    """The text of a failed assertion: the messages that were seen, and how each differs from the wanted one."""
    count = sum(map(wanted.matches, seen))
    expected = "at least one" if times is None else times or "none"
    lines = [f"{call}({wanted}): {expected} expected, {count or 'none'} found. {'' if count else hint}".rstrip()]
    lines.append(f"What was published ({len(seen)}):" if seen else "Nothing was published.")
    for number, message in enumerate(seen, 1):
        lines.append(f"{'*' if wanted.matches(message) else ' '} {number:2} {message}")
        if wanted.is_named(message):
            lines += [f"       - {difference}" for difference in wanted.differences(message)]
    return "\n".join(lines)


def _compared(name: str, wanted: Any, actual: Any) -> Iterator[str]:
    """Where `actual` differs from `wanted`. A mapping in `wanted` may be a part of the actual one."""
    inside = f"{name}." if name else ""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        for key, value in wanted.items():
            if key in actual:
                yield from _compared(f"{inside}{key}", value, actual[key])
            else:
                yield f"{inside}{key} is missing; there is {', '.join(map(str, actual)) or 'nothing'}"
    elif isinstance(wanted, list | tuple) and isinstance(actual, list | tuple) and len(wanted) == len(actual):
        for place, value in enumerate(wanted):
            yield from _compared(f"{inside}{place}", value, actual[place])
    elif not _same(wanted, actual):
        yield f"{name} is {actual!r}, not {wanted!r}"


def _same(wanted: Any, actual: Any) -> bool:
    """Whether they are equal, or are so as JSON: there a UUID is its text."""
    try:
        return bool(wanted == actual) or bool(to_jsonable_python(wanted) == actual)
    except ValueError:  # no JSON, such as pytest.approx, which is equal or is not
        return False
