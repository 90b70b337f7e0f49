"""`outbox-tasks events`: the declared events as documents, and what a change of them breaks."""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from outbox_tasks.cli.shared.output import answer, cell, json_option, remark, table
from outbox_tasks.errors import EventsUnreadable
from outbox_tasks.events.diff import GRADES, changes
from outbox_tasks.events.documents import asyncapi, json_schema, name_of
from outbox_tasks.outbox import Outbox
from outbox_tasks.text import many

ASYNCAPI = "asyncapi.json"

STYLES = {"breaks": "red", "risky": "yellow", "safe": "green"}


@click.group()
def events() -> None:
    """The events that `outbox.event` declares. OUTBOX is where the Outbox is, such as shop.db:outbox."""


@events.command()
@click.argument("outbox")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def export(outbox: str, directory: Path) -> None:
    """Write asyncapi.json, and a JSON Schema for each event, into DIRECTORY."""
    found = _outbox(outbox)
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / ASYNCAPI, asyncapi(found.events, found.settings))
    for event_type, event in found.events.items():
        _write(directory / f"{name_of(event_type)}.schema.json", json_schema(event))
    click.echo(f"{many(len(found.events), 'event')} in {directory}")


@events.command()
@click.argument("old", type=click.File(encoding="utf-8"))
@click.argument("outbox")
@json_option
def diff(old: TextIO, outbox: str) -> None:
    """Compare OLD, an asyncapi.json (- is stdin), with the events of OUTBOX. Exit code 1 if a change breaks somebody.

    breaks: consumers can't read tomorrow's messages, or a message that is stored today no longer fits. risky: only
    strict consumers notice it.
    """
    found = _outbox(outbox)
    after = asyncapi(found.events, found.settings)
    try:
        all_changes = sorted(changes(json.load(old), after), key=lambda change: (GRADES.index(change.grade), change))
    except (ValueError, LookupError, TypeError) as error:
        raise EventsUnreadable(place=old.name, reason=f"it is no asyncapi.json: {error!r}") from error
    rows = table("grade", "event", "field", "change", "why")
    for change in all_changes:
        rows.add_row(cell(change.grade, STYLES[change.grade]), *map(cell, (change[0], change[1], change[2], change[4])))
    answer([change._asdict() for change in all_changes], rows if all_changes else "No change.")
    if breaking := Counter(change.grade for change in all_changes)["breaks"]:
        remark(
            f"{many(breaking, 'change')} would break consumers or stored messages. Keep the old event as it is, and "
            "declare a new one, such as order.created.v2."
        )
        raise SystemExit(1)


def _outbox(place: str) -> Outbox:
    """The Outbox at MODULE:NAME. Raises `EventsUnreadable`."""
    module, _, name = place.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(import_module(module), name or "outbox")
    except (ImportError, AttributeError) as error:
        raise EventsUnreadable(place=place, reason=error) from error
    if not isinstance(found, Outbox) or not found.events:
        reason = "it declares no event" if isinstance(found, Outbox) else "it is no outbox_tasks.Outbox"
        raise EventsUnreadable(place=place, reason=reason)
    return found


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
