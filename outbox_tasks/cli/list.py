"""`outbox-tasks list`: messages that match filters, errors of dead letters in groups, and keys that are held up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outbox_tasks.cli.shared.options import filter_options, limit_option
from outbox_tasks.cli.shared.output import answer, cell, indented, json_option, listed, remark, table
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.filters import as_filter
from outbox_tasks.operating.messages.find import COUNTED_AT_MOST, GROUPS_AT_MOST, STATES, Filter, Lookup
from outbox_tasks.operating.messages.keys import held_up
from outbox_tasks.operating.messages.life import error_of
from outbox_tasks.operating.messages.paging import Page, read_page
from outbox_tasks.relay.store import Store
from outbox_tasks.text import ago, moment, one_line


@click.command("list")
@click.option("--by", type=click.Choice(["error", "key"]), help="Dead letters by error, or the keys that are held up.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only this state; may be given again."
)
@filter_options
@limit_option(50, 10_000)
@json_option
def list_messages(by: str | None, states: tuple[str, ...], error: str | None, limit: int, **given: Any) -> None:
    """List messages, the newest first.

    It looks at those that the filters lead to, but not at millions of rows, and says if there may be more. With --state
    dead, the last to die come first.

    --by error shows the errors of the dead letters: how many, since when, an example. A group has one destination, one
    event type and one error. Numbers and names in the error make no difference.

    --by key shows the keys that are held up: by which message, why, until when, and how many wait. A key is held up
    behind a dead letter, or while its first message waits for its time or another try.
    """
    wanted = as_filter(states, error, **given)
    if by is not None and wanted != Filter(destination=wanted.destination):
        raise click.UsageError("with --by, the only filter is --destination")
    with open_store() as store:
        if by == "error":
            _list_errors(store, wanted.destination, limit)
        elif by == "key":
            _list_keys(store, wanted.destination, limit)
        else:
            _list_messages(store, wanted, limit)


def _list_messages(store: Store, wanted: Filter, limit: int) -> None:
    page = read_page(store, wanted, limit)
    messages = page.messages
    facts = {"messages": messages, "complete": page.complete and page.older is None, "back_to": page.reached}
    answer(facts, _message_lines(messages) if messages else None)
    remark(*_remarks(page, len(messages), limit))
    if not messages and wanted.destination is not None and wanted.destination not in store.settings.destinations:
        remark(f"No destination {wanted.destination!r} is configured.")


def _remarks(page: Page, count: int, limit: int) -> Iterator[str]:
    if count == limit:
        yield f"These are {limit:,}; --limit shows more, and filters show less."
        return
    if not count:
        yield "No such messages."
    if page.reached is not None:
        yield (
            f"Looked at {page.looked:,} messages back to those of {moment(page.reached)}. To see others, add "
            "--older-than, or more filters: --destination, --key, --state."
        )


def _message_lines(messages: list[dict[str, Any]]) -> RenderableType:
    """Each message on one line, and a second one for its error and key."""
    head = Text(f"{'id':<36}  {'state':<9}  {'age':<6} message", "bold", no_wrap=True, overflow="ellipsis")
    return Group(head, *map(listed, messages))


def _list_errors(store: Store, destination: str | None, limit: int) -> None:
    groups, complete = Lookup(store).groups(destination)
    shown = groups[:limit]
    facts = [{**group, "redrive": f"outbox-tasks redrive --group {group['group']}"} for group in shown]
    all_shown = complete and len(shown) == len(groups)
    answer({"groups": facts, "complete": all_shown}, _error_table(shown) if shown else "There are no dead letters.")
    if shown:
        remark("\nSee a message: outbox-tasks show ID. Send a group: outbox-tasks redrive --group GROUP.")
    if len(shown) < len(groups):
        remark(f"These are the largest {limit:,} of {len(groups):,} groups; --limit shows more.")
    if not complete:
        remark(f"Only the first {GROUPS_AT_MOST:,} groups were looked at.")


def _error_table(groups: list[dict[str, Any]]) -> Table:
    """Each group: its name, how many, since when, and an example."""
    rows = table("group", "dead", "first", "last", "what", right=("dead",))
    for group in groups:
        what = Text(f"{one_line(group['destination'])}  {one_line(group['event_type'])}", "bold")
        what.append(f"\n{error_of(group)}", "red").append(f"\n{group['id']}", "dim")
        rows.add_row(
            cell(group["group"]), _count(group["count"]), _age(group["first_at"]), _age(group["dead_at"]), what
        )
    return rows


def _age(moment: datetime) -> str:
    return ago(moment).removesuffix(" ago")


def _list_keys(store: Store, destination: str | None, limit: int) -> None:
    held = held_up(store, limit, destination)
    shut = {name: str(wait) for name, wait in held.shut.items()}
    lines = _key_lines(held.keys)
    lines += [Text(one_line(f"All keys of this destination wait: {wait}")) for wait in shut.values()]
    facts = {"keys": held.keys, "more": held.more, "destinations": shut}
    answer(facts, Group(*lines) if lines else "No key is held up.")
    if held.more:
        remark("There are more: --limit shows them.")


def _key_lines(keys: list[dict[str, Any]]) -> list[RenderableType]:
    """Each key: its name and how many messages wait; below it why, and the error."""
    lines: list[RenderableType] = []
    for key in keys:
        line = cell(key["destination"]).append("  ").append(one_line(key["key"]), "bold")
        waiting = f"{_count(key['waiting'])} {'waits' if key['waiting'] == 1 else 'wait'}"
        lines.append(line.append(f"  {waiting}", "yellow"))
        lines.append(indented(cell(key["waits"]), 2))
        if key["last_error"]:
            lines.append(indented(cell(key["last_error"], "dim"), 2))
    return lines


def _count(count: int) -> str:
    return f"{count:,}" + ("+" if count >= COUNTED_AT_MOST else "")
