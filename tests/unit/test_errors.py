"""The one family of errors: each says the fact, the cause and the remedy, and travels whole."""

from __future__ import annotations

import ast
import pickle
import string
from collections.abc import Iterator
from pathlib import Path

from celery.utils.serialization import get_pickleable_exception

import outbox_tasks
import outbox_tasks.local.errors
import outbox_tasks.testing.store
import outbox_tasks.worker.tasks
from outbox_tasks.errors import (
    OutboxError,
    PublishError,
)


def family(kind: type[OutboxError]) -> Iterator[type[OutboxError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


FAMILY = sorted(set(family(OutboxError)), key=lambda kind: kind.__name__)


def template(kind: type[OutboxError]) -> str:
    assert "says" in vars(kind), f"{kind.__name__} has no message"
    return " ".join(kind.says.split())


def fields(kind: type[OutboxError]) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template(kind)) if name]


def example(kind: type[OutboxError]) -> OutboxError:
    if kind.__init__ is PublishError.__init__:
        return kind("the answer was {odd}", code="refused")
    return kind(**{name: 1.5 if name == "seconds" else f"<{name} {{x}} %s>" for name in fields(kind)})


def test_every_error_fills_its_text_with_its_facts_and_arrives_whole() -> None:
    for kind in FAMILY:
        error = example(kind)
        assert str(error) == template(kind).format_map(error.facts)
        assert {name: getattr(error, name) for name in error.facts} == error.facts
        assert not hasattr(error, "no_such_fact")
        for travelling in (error, get_pickleable_exception(error)):
            arrived = pickle.loads(pickle.dumps(travelling))
            assert (type(arrived), str(arrived), arrived.facts) == (kind, str(error), error.facts)


def test_every_raise_gives_all_the_facts_that_the_message_needs() -> None:
    """Static: an error path that nobody walks in a test must not end in a KeyError."""
    kinds = {kind.__name__: kind for kind in FAMILY}
    found = 0
    for path in sorted(Path(outbox_tasks.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds):
                continue
            kind = kinds[node.func.id]
            given = {keyword.arg for keyword in node.keywords}
            if None in given or issubclass(kind, PublishError):
                continue
            assert set(fields(kind)) <= given | kind.usual.keys(), f"{path.name}:{node.lineno} {kind.__name__}"
            found += 1
    assert found > 20
