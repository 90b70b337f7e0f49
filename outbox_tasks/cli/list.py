"""`outbox-tasks list`: the messages that match filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from outbox_tasks.cli.shared.options import as_filter, filter_options, limit_option
from outbox_tasks.cli.shared.output import answer, json_option, listed, remark
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.find import STATES
from outbox_tasks.operating.messages.paging import Page, read_page
from outbox_tasks.text import moment


@click.command("list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only this state; may be given again."
)
@filter_options
@limit_option(50, 10_000)
@json_option
def list_messages(states: tuple[str, ...], error: str | None, limit: int, **given: Any) -> None:
    """List messages, the newest first.

    It looks at the newest messages, at the oldest that are not yet sent, and at those that the filters lead to, but not
    at millions of rows. It says if there may be more. With --state dead, the last to die come first.
    """
    wanted = as_filter(states, error, **given)
    with open_store() as store:
        page = read_page(store, wanted, limit)
        known = store.settings.destinations
    found = (page.messages + page.aside)[:limit]
    shown = {"messages": found, "complete": page.complete and page.older is None, "back_to": page.reached}
    answer(shown, _listed(found) if found else None)
    remark(*_remarks(page, len(found), limit))
    if not found and wanted.destination is not None and wanted.destination not in known:
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


def _listed(messages: list[dict[str, Any]]) -> RenderableType:
    """Each message on one line, and a second one for its error and key."""
    head = Text(f"{'id':<36}  {'state':<9}  {'age':<4} message", "bold", no_wrap=True, overflow="ellipsis")
    return Group(head, *map(listed, messages))
