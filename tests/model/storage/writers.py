"""Transactions of applications: each marks its key, takes a number, and ends in one way or the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.storage.explore import Step
from tests.model.storage.key_state import Row, State, Writer

if TYPE_CHECKING:
    from tests.model.storage.keys import Keys


def writes(keys: Keys, state: State) -> Iterator[Step]:
    """Every step that a writer may take now."""
    given = len(state.rows)
    if given + sum(writer.number < 0 for writer in state.writers) < len(keys.keys):
        for key in sorted({*keys.keys[given:]}):
            new = keys.starts(Writer(key, given))
            yield Step(f"a transaction marks key {key}", state._replace(writers=tuple(sorted((*state.writers, new)))))
    for n, writer in enumerate(state.writers):
        others = (*state.writers[:n], *state.writers[n + 1 :])
        if writer.number < 0:
            if given < len(keys.keys) and keys.keys[given] == writer.key:
                numbered = tuple(sorted((*others, writer._replace(number=given))))
                there = (*state.rows, Row(writer.key, "open"))
                yield Step(f"it inserts m{given + 1}", state._replace(rows=there, writers=numbered))
            yield Step("a transaction ends without a message", state._replace(writers=others))
            continue
        told = f"m{writer.number + 1}"
        for place in ("ready", "later") if keys.scheduled else ("ready",):
            rows = state.with_rows({writer.number: Row(writer.key, place)})
            yield Step(f"{told} is committed{', due later' if place == 'later' else ''}", rows._replace(writers=others))
        rows = state.with_rows({writer.number: Row(writer.key, "over")})
        yield Step(f"{told} is rolled back", rows._replace(writers=others))
