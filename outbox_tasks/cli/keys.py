"""`outbox-tasks keys`: the keys that a dead message holds up."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from outbox_tasks.cli.shared.options import limit_option
from outbox_tasks.cli.shared.output import answer, cell, json_option, say, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import overview
from outbox_tasks.operating.messages.waits import dead_head, of_destinations
from outbox_tasks.operating.overview import COUNTED
from outbox_tasks.text import one_line


@click.command()
@click.option("--blocked", is_flag=True, help="The default: keys that a dead message holds up.")
@limit_option(100)
@json_option
def keys(blocked: bool, limit: int) -> None:
    """List the keys that are held up: by which message, since when, how many wait. Exit code 1 if there are any."""
    with open_store() as store:
        found = [row._asdict() for row in overview.blocked_keys(store, limit)]
        for one in found:
            one["waits"] = str(dead_head(one))
        shut = {name: str(wait) for name, wait in sorted(of_destinations(store).items())}
        more = overview.count_blocked_keys(store, COUNTED) - len(found) if len(found) == limit else 0
    shown = _table(found) if found else None if shut else "No key is held up."
    answer({"blocked": found, "more": max(0, more), "destinations": shut}, shown)
    if not wants_json():
        if more > 0:
            about = " or more" if more + len(found) >= COUNTED else ""
            say(f"There are {more:,}{about} more: --limit shows them.", err=True)
        for wait in shut.values():
            say(one_line(f"All keys of this destination wait, because {wait}"))
    raise SystemExit(bool(found))


def _table(found: list[dict[str, Any]]) -> RenderableType:
    """Each key: its name and how many messages wait; below it the dead message and its error."""
    lines: list[Text] = []
    for one in found:
        count = f"{one['waiting']:,}" + ("+" if one["waiting"] >= COUNTED else "")
        line = cell(one["destination"]).append("  ").append(one_line(one["key"]), "bold")
        lines.append(line.append(f"  {count} {'waits' if one['waiting'] == 1 else 'wait'}", "yellow"))
        lines.append(Text(one_line(f"because {one['waits']}")))
        lines[-1].pad_left(2)
        if one["last_error"]:
            lines.append(Text(f"  {one_line(one['last_error'])}", "dim"))
    return Group(*lines)
