"""What has changed between two AsyncAPI documents of events, and whether it breaks somebody.

A change has two sides. Consumers of today read the messages of tomorrow; and consumers of tomorrow read messages of
today, which wait in the outbox, are dead letters, or are replayed. A change that fails on either side breaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Schema = Mapping[str, Any]

Grade = Literal["breaks", "risky", "safe"]

GRADES: Sequence[Grade] = ("breaks", "risky", "safe")

LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
RULES = ("format", "pattern", "multipleOf", "uniqueItems")
"""Keywords of which neither of two values is known to be the wider one."""


class Change(NamedTuple):
    """One change. `place`: the path of the field in the payload; empty: the payload itself."""

    event_type: str
    place: str
    kind: str
    grade: Grade
    reason: str


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """The changes from one AsyncAPI document to another. What only people read, such as a description, is none."""
    before, after = _payloads(old), _payloads(new)
    for event_type in before.keys() | after.keys():
        if event_type not in after:
            yield Change(event_type, "", "event removed", "breaks", "consumers wait for it in vain")
        elif event_type not in before:
            yield Change(event_type, "", "event added", "safe", "nobody reads it yet")
        else:
            found = _Comparison(old, new).of(before[event_type], after[event_type], "")
            yield from (Change(event_type, *change) for change in found)


def _payloads(document: Mapping[str, Any]) -> dict[str, Schema]:
    return {each["name"]: each["payload"]["schema"] for each in document["components"]["messages"].values()}


Found = tuple[str, str, Grade, str]
"""The place, kind, grade and reason of a change."""


class _Comparison:
    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._open: set[tuple[int, int]] = set()
        """The pairs that are being compared: a model may contain itself."""

    def of(self, old: Schema, new: Schema, place: str) -> Iterator[Found]:
        """The changes between two schemas of one value."""
        pair = id(old), id(new)
        if pair in self._open:
            return
        self._open.add(pair)
        before, after = _alternatives(self._old, old), _alternatives(self._new, new)
        removed, added = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
        kept = sorted(before.keys() & after.keys())
        if not kept:
            yield place, "type changed", "breaks", f"{' or '.join(removed)} became {' or '.join(added)}"
        elif removed:
            yield place, "type narrowed", "breaks", f"stored messages may hold {' or '.join(removed)}"
        if kept and added:
            yield place, "type widened", "breaks", f"consumers don't expect {' or '.join(added)}"
        for kind in kept:
            yield from _of_values(before[kind], after[kind], place)
            yield from _of_rules(before[kind], after[kind], place)
            yield from self._of_fields(before[kind], after[kind], place)
            yield from self._of_items(before[kind], after[kind], place)
        self._open.remove(pair)

    def _of_fields(self, old: Schema, new: Schema, place: str) -> Iterator[Found]:
        before, after = old.get("properties", {}), new.get("properties", {})
        needed_before, needed = set(old.get("required", ())), set(new.get("required", ()))
        for name in [*before, *(name for name in after if name not in before)]:
            field = f"{place}.{name}" if place else name
            if name not in after:
                yield field, "field removed", "breaks", "consumers may read it"
            elif name not in before and name in needed:
                yield field, "required field added", "breaks", "stored messages lack it: give it a default"
            elif name not in before:
                yield field, "optional field added", "safe", "consumers pass over it"
            else:
                if name in needed - needed_before:
                    yield field, "became required", "breaks", "stored messages may lack it"
                if name in needed_before - needed:
                    yield field, "became optional", "breaks", "consumers rely on it"
                yield from self.of(before[name], after[name], field)
        others_before, others = old.get("additionalProperties", True), new.get("additionalProperties", True)
        if isinstance(others_before, Mapping) and isinstance(others, Mapping):
            yield from self.of(others_before, others, f"{place}.*" if place else "*")
        elif others_before is not False and others is False and "properties" in new:
            yield place, "closed to other fields", "breaks", "stored messages may have some"
        elif others_before is False and others is not False:
            yield place, "open to other fields", "risky", "strict consumers refuse them"

    def _of_items(self, old: Schema, new: Schema, place: str) -> Iterator[Found]:
        # If their lengths differ, so do minItems and maxItems.
        pairs = zip(old.get("prefixItems", []), new.get("prefixItems", []), strict=False)
        for position, (value_before, value) in enumerate(pairs):
            yield from self.of(value_before, value, f"{place}[{position}]")
        if isinstance(old.get("items"), Mapping) and isinstance(new.get("items"), Mapping):
            yield from self.of(old["items"], new["items"], f"{place}[]")


def _of_values(old: Schema, new: Schema, place: str) -> Iterator[Found]:
    """The changes of an enumeration, or of a constant."""
    before, after = _values(old), _values(new)
    if before is None and after is not None:
        yield place, "type narrowed", "breaks", "stored messages may hold other values than these"
    elif before is not None and after is None:
        yield place, "type widened", "breaks", "consumers know the listed values only"
    elif before is not None and after is not None:
        for value in (value for value in before if value not in after):
            yield place, "value removed", "breaks", f"stored messages may hold {value!r}"
        for value in (value for value in after if value not in before):
            yield place, "value added", "risky", f"consumers may not know {value!r}"


def _of_rules(old: Schema, new: Schema, place: str) -> Iterator[Found]:
    """The changes of what a value must keep to."""
    for name in (*LOWER, *UPPER):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        tighter = before is None or (after is not None and (after > before if name in LOWER else after < before))
        if tighter:
            yield place, "limit tightened", "breaks", f"stored messages may be beyond {name} {after}"
        else:
            yield place, "limit loosened", "risky", f"consumers may rely on {name} {before}"
    for name in RULES:
        if (before := old.get(name)) != (after := new.get(name)):
            yield place, "format changed", "breaks", f"{name} {before or 'none'} became {after or 'none'}"


def _values(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _alternatives(document: Mapping[str, Any], schema: Schema) -> dict[str, Schema]:
    """What a value may be, by type. Several objects or lists are told apart by their titles."""
    alternatives = list(_flat(document, schema))
    types = [each.get("type", "anything") for each in alternatives]
    return {
        kind if types.count(kind) == 1 else f"{kind} {each.get('title', position)}": each
        for position, (kind, each) in enumerate(zip(types, alternatives, strict=True))
    }


def _flat(document: Mapping[str, Any], schema: Schema) -> Iterator[Schema]:
    """The alternatives of a schema, without references."""
    if "$ref" in schema:
        target: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = {**target, **{name: value for name, value in schema.items() if name != "$ref"}}
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    if not choices:
        yield schema
    for choice in choices:
        yield from _flat(document, choice)
