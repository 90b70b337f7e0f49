"""`outbox-tasks keys`: the keys that are held up."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from outbox_tasks.cli.shared.options import limit_option
from outbox_tasks.cli.shared.output import answer, cell, json_option, say, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.keys import held_up
from outbox_tasks.operating.overview import COUNTED
from outbox_tasks.text import one_line


@click.command()
@limit_option(100)
@json_option
def keys(limit: int) -> None:
    """List the keys that are held up: by which message, why, until when, how many wait. Exit code 1 if there are any.

    A key is held up behind a dead letter, or while its first message waits for its time or another try.
    """
    with open_store() as store:
        found = held_up(store, limit)
    shut = {name: str(wait) for name, wait in found.shut.items()}
    shown = _table(found.keys) if found.keys else None if shut else "No key is held up."
    answer({"keys": found.keys, "more": found.more, "destinations": shut}, shown)
    if not wants_json():
        if found.more:
            say("There are more: --limit shows them.", err=True)
        for wait in shut.values():
            say(one_line(f"All keys of this destination wait: {wait}"))
    raise SystemExit(bool(found.keys))


def _table(found: list[dict[str, Any]]) -> RenderableType:
    """Each key: its name and how many messages wait; below it why, and the error."""
    lines: list[Text] = []
    for key in found:
        count = f"{key['waiting']:,}" + ("+" if key["waiting"] >= COUNTED else "")
        line = cell(key["destination"]).append("  ").append(one_line(key["key"]), "bold")
        lines.append(line.append(f"  {count} {'waits' if key['waiting'] == 1 else 'wait'}", "yellow"))
        lines.append(Text(f"  {one_line(key['waits'])}"))
        if key["last_error"]:
            lines.append(Text(f"  {one_line(key['last_error'])}", "dim"))
    return Group(*lines)
