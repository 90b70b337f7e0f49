"""Which messages an assertion asks for, and what it says if they are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_jsonable_python

from outbox_tasks.testing.errors import NotJson
from outbox_tasks.testing.messages import SeenMessage

Differences = list[str]


@dataclass(frozen=True)
class Wanted:
    """The message that a test asks for. None, or empty: any."""

    event_type: str = "*"
    fields: Mapping[str, Any] = field(default_factory=dict)
    payload: Any = None
    key: str | None = None
    to: str | None = None
    headers: Mapping[str, str] | None = None
    message_id: UUID | str | None = None

    def is_named(self, message: SeenMessage) -> bool:
        """Whether the event type matches."""
        return fnmatchcase(message.event_type, self.event_type)

    def differences(self, message: SeenMessage) -> Differences:
        """In what a message differs from the wanted one."""
        found: Differences = []
        for name, actual in (("key", message.key), ("to", message.destination), ("message_id", str(message.id))):
            wanted = getattr(self, name)
            if wanted is not None and str(wanted) != actual:
                found.append(f"{name} is {actual!r}, not {str(wanted)!r}")
        if self.headers is not None:
            found += compare("headers", self.headers, message.headers)
        if self.fields:
            found += _of_fields(self.fields, message)
        if self.payload is not None and not _is_payload(self.payload, message):
            found.append(f"payload is {message.text}, not {self.payload!r}")
        return found

    def __str__(self) -> str:
        others = {name: getattr(self, name) for name in ("payload", "key", "to", "headers", "message_id")}
        given = {**self.fields, **{name: value for name, value in others.items() if value is not None}}
        named = [] if self.event_type == "*" else [repr(self.event_type)]
        return ", ".join([*named, *(f"{name}={value!r}" for name, value in given.items())])


@dataclass(frozen=True)
class WantedTask:
    """The Celery task that a test asks for."""

    name: str
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    eager: str | None = None
    """If the task's app is eager: the sentence that says so."""

    def is_named(self, message: SeenMessage) -> bool:
        """Whether the task's name matches."""
        return fnmatchcase(message.event_type, self.name)

    def differences(self, message: SeenMessage) -> Differences:
        """In what a task differs from the wanted one."""
        task, found = message.task, list[str]()
        if task is None:
            return ["it is no task"]
        if self.args is not None and not _matches(list(self.args), task.args):
            found.append(f"args are {tuple(task.args)!r}, not {tuple(self.args)!r}")
        if self.kwargs is not None:
            found += compare("kwargs", self.kwargs, task.kwargs)
        if self.queue is not None and self.queue != task.queue:
            found.append(f"queue is {task.queue!r}, not {self.queue!r}")
        return found

    def __str__(self) -> str:
        asked = [f"{n}={getattr(self, n)!r}" for n in ("args", "kwargs", "queue") if getattr(self, n) is not None]
        return ", ".join([repr(self.name), *asked])


def compare(name: str, wanted: Any, actual: Any) -> Differences:
    """Where `actual` differs from `wanted`. A mapping in `wanted` may be a part of the actual one."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        found: Differences = []
        for key, value in wanted.items():
            inner = f"{name}.{key}" if name else str(key)
            if key not in actual:
                there = ", ".join(map(str, actual)) or "nothing"
                found.append(f"{inner} is missing; there is {there}")
            else:
                found += compare(inner, value, actual[key])
        return found
    return [] if _matches(wanted, actual) else [f"{name} is {actual!r}, not {wanted!r}"]


def explained(
    wanted: Wanted | WantedTask,
    times: int | None,
    seen: Sequence[SeenMessage],
    *,
    call: str,
    verb: str,
    hint: str,
) -> str:
    """The text of a failed assertion: the messages that were seen, and how each differs from the wanted one."""
    matching = sum(not wanted.differences(message) for message in seen if wanted.is_named(message))
    expected = "at least one" if times is None else "none" if not times else str(times)
    lines = [f"{call}({wanted}): {expected} expected, {matching or 'none'} found."]
    if not matching and isinstance(wanted, WantedTask) and wanted.eager:
        lines.append(f"{wanted.eager} See docs/testing.md.")
    if not seen:
        return "\n".join([*lines, f"Nothing was {verb}. {hint}"])
    lines.append(f"What was {verb} ({len(seen)}):")
    for number, message in enumerate(seen, 1):
        named = wanted.is_named(message)
        differences = wanted.differences(message) if named else []
        lines.append(f"{'*' if named and not differences else ' '} {number:2} {message}")
        lines += [f"       - {difference}" for difference in differences]
    return "\n".join(lines)


def _of_fields(fields: Mapping[str, Any], message: SeenMessage) -> Differences:
    try:
        decoded = message.json
    except NotJson:
        return [f"payload is not JSON but {message.content_type}"]
    if not isinstance(decoded, Mapping):
        return ["payload is not a JSON object"]
    return compare("", fields, decoded)


def _is_payload(wanted: Any, message: SeenMessage) -> bool:
    if isinstance(wanted, bytes):
        return wanted == message.payload
    if isinstance(wanted, str) and wanted == message.text:
        return True
    try:
        return _matches(wanted, message.json, whole=True)
    except NotJson:
        return False


def _matches(wanted: Any, actual: Any, *, whole: bool = False) -> bool:
    """Whether they are equal, or are so as JSON: there a UUID is its text, and a tuple a list."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        if whole and wanted.keys() != actual.keys():
            return False
        return all(key in actual and _matches(value, actual[key], whole=whole) for key, value in wanted.items())
    if isinstance(wanted, list | tuple) and isinstance(actual, list | tuple):
        pairs = zip(wanted, actual, strict=False)
        return len(wanted) == len(actual) and all(_matches(one, other, whole=whole) for one, other in pairs)
    return bool(wanted == actual) or _as_json(wanted) == actual


def _as_json(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        return value
