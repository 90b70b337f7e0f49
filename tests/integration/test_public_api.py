"""What people rely on, name by name, is in tests/public-api.txt. Whoever changes it on purpose changes that file too:

PUBLIC_API=write python -m pytest tests/integration/test_public_api.py
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from sqlalchemy import Engine, text

from outbox_tasks import __all__ as exported
from outbox_tasks import signals
from outbox_tasks.broker import names
from outbox_tasks.cli import outbox
from outbox_tasks.feeds.place import FeedPlace
from outbox_tasks.outbox import Options
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.settings.destination import Destination, Route

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "public-api.txt"

PYTHON = {
    "outbox_tasks": [name for name in exported if name not in ("Destination", "Settings", "__version__")],
    "outbox_tasks.destinations": ["Publisher"],
    "outbox_tasks.migrations": ["grant", "grants", "include_name", "upgrade", "upgrade_feed"],
    "outbox_tasks.testing": ["OutboxProbe", "SeenMessage", "StoredTask"],
    "outbox_tasks.web": ["Page"],
}
OURS = {"found", "handle", "is_static", "known", "longest_form", "person", "respond", "trouble", "write_task"}
"""Methods that only other parts of the package call."""

FUNCTIONS = ("outbox_backlog", "outbox_cancel", "outbox_publish")
VIEWS = ("outbox_all", "outbox_archive")


def signature(function: Any) -> str:
    """Without annotations: each version of Python shows them in a way of its own."""
    found, empty = inspect.signature(function), inspect.Parameter.empty
    bare = [one.replace(annotation=empty) for one in found.parameters.values()]
    return re.sub(r"<[^<>]* object at [^<>]*>|<factory>", "…", str(inspect.Signature(bare)))


def is_exception(one: object) -> bool:
    return inspect.isclass(one) and issubclass(one, BaseException)


def members(cls: type) -> Iterator[str]:
    """The methods and properties of its own, and of our classes that it is made of."""
    shown = set() if is_exception(cls) else set(inspect.signature(cls).parameters)
    for name in sorted(set(dir(cls)) - OURS - shown):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        if name[0] != "_" and owner.__module__.startswith("outbox_tasks"):
            one = getattr(cls, name)
            yield name + (signature(one) if callable(one) else "")


def python() -> Iterator[str]:
    for module, its in PYTHON.items():
        for name in its:
            one = getattr(import_module(module), name)
            yield f"{module}.{name}" + ("" if is_exception(one) else signature(one))
            if inspect.isclass(one):
                yield from (f"  {member}" for member in members(one))
    yield f"outbox_tasks.outbox.Options: {', '.join(inspect.get_annotations(Options))}"
    errors = import_module("outbox_tasks.errors")
    for name, one in sorted(vars(errors).items()):
        if inspect.isclass(one) and one.__module__ == errors.__name__ and not name.startswith("_"):
            yield f"outbox_tasks.errors.{name}({', '.join(base.__name__ for base in one.__bases__)})"
    yield from (
        f"outbox_tasks.signals.{name}" for name, one in vars(signals).items() if isinstance(one, signals.Signal)
    )


def commands(command: click.Command, name: str) -> Iterator[str]:
    options = ["/".join([*one.opts, *one.secondary_opts]) for one in command.params]
    yield " ".join([name, *(f"[{option}]" for option in options if option != "--help")])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from commands(found, f"{name} {below}")


def settings() -> Iterator[str]:
    kinds: dict[str, type[BaseModel]] = {
        "": Settings, "destinations.<name>.": Destination, "routes.<pattern>.": Route, "feeds.<name>.": FeedPlace,
    }  # fmt: skip
    for prefix, model in kinds.items():
        for name, field in model.model_fields.items():
            default = "…" if field.default_factory else field.default
            yield f"{prefix}{field.alias or name} = {'required' if default is PydanticUndefined else default}"


def celery() -> Iterator[str]:
    yield from (f"task {name}" for name in names.TASKS)
    yield from (f"queue {name}" for name in names.ALL_QUEUES)


def in_sql(engine: Engine, schema: str) -> Iterator[str]:
    """As in SQL: the functions with their arguments, the views with their columns."""
    asked = """
        SELECT proname || '(' || pg_get_function_arguments(oid) || ') RETURNS ' || pg_get_function_result(oid)
        FROM pg_proc WHERE pronamespace = to_regnamespace(:schema) AND proname = ANY (:functions)
        UNION ALL
        SELECT attrelid::regclass::text || ' '
               || string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
        FROM pg_attribute JOIN pg_class c ON c.oid = attrelid AND relnamespace = to_regnamespace(:schema)
        WHERE relname = ANY (:views) AND attnum > 0 GROUP BY attrelid
    """
    with engine.connect() as connection:
        connection.execute(text(f"SET search_path = {schema}"))
        said = {"schema": schema, "functions": list(FUNCTIONS), "views": list(VIEWS)}
        yield from sorted(connection.scalars(text(asked), said))


def test_nothing_that_people_rely_on_changes_unnoticed(store: Store, engine: Engine, schema: str) -> None:
    parts = {
        "Python": python(), "Commands": commands(outbox, "outbox-tasks"), "Settings": settings(), "Celery": celery(),
        "SQL": in_sql(engine, schema),
    }  # fmt: skip
    intro = "# What people rely on. A change of this file is a change for them: see CONTRIBUTING.md.\n"
    found = intro + "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts.items())
    if os.environ.get("PUBLIC_API") == "write":
        FILE.write_text(found)
    known = FILE.read_text()
    changes = "\n".join(
        difflib.unified_diff(known.splitlines(), found.splitlines(), "known", "found", n=0, lineterm="")
    )
    assert known == found, (
        f"{changes}\nIf that is meant: PUBLIC_API=write python -m pytest {__file__}, and CHANGELOG.md"
    )
