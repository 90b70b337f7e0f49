"""`outbox-tasks errors`: the dead letters in groups."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from outbox_tasks.cli.shared.options import limit_option
from outbox_tasks.cli.shared.output import ago, answer, cell, json_option, remark, table
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.find import COUNTED, MOST_GROUPS, Lookup
from outbox_tasks.operating.messages.life import error_of
from outbox_tasks.text import one_line


@click.command()
@click.option("--destination", metavar="NAME", help="Only messages to this destination.")
@limit_option(50)
@json_option
def errors(destination: str | None, limit: int) -> None:
    """Show the errors of the dead letters, in groups: how many, since when, an example.

    A group has one destination, one event type and one error. Numbers and names in the error make no difference.
    """
    with open_store() as store:
        found, complete = Lookup(store).groups(destination)
    shown = found[:limit]
    none = "There are no dead letters." if complete else "None were found."
    groups = [{**group, "redrive": f"outbox-tasks redrive --group {group['group']}"} for group in shown]
    answer({"groups": groups, "complete": complete and len(shown) == len(found)}, _groups(shown) if found else none)
    if found:
        remark("\nSee a message: outbox-tasks show ID. Send a group: outbox-tasks redrive --group GROUP.")
    if len(shown) < len(found):
        remark(f"These are the largest {limit:,} of {len(found):,} groups; --limit shows more.")
    if not complete:
        remark(f"Only the first {MOST_GROUPS:,} groups were looked at.")


def _groups(found: list[dict[str, Any]]) -> Table:
    """Each group: its name, how many, since when, and an example."""
    shown = table("group", "dead", "first", "last", "what", right=("dead",))
    for one in found:
        what = Text(f"{one_line(one['destination'])}  {one_line(one['event_type'])}", "bold")
        what.append(f"\n{error_of(one)}", "red").append(f"\n{one['id']}", "dim")
        count = f"{one['count']:,}" + ("+" if one["count"] >= COUNTED else "")
        shown.add_row(cell(one["group"]), count, ago(one["first_at"]), ago(one["dead_at"]), what)
    return shown
