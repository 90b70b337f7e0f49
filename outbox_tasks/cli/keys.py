"""The commands that show what is going on."""

from __future__ import annotations

import click

from outbox_tasks.cli.common import console, echo_json, json_option, open_store, say
from outbox_tasks.operating import overview


@click.command(short_help="List the keys that are held up, and by which message.")
@click.option("--blocked", is_flag=True, help="Those held up by a dead message: the default, and so far all there is.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="So many at most.")
@json_option
def keys(blocked: bool, limit: int, as_json: bool) -> None:
    """List the keys that are held up: by which message, since when, how many wait. Exit code 1 if there are any."""
    from outbox_tasks.cli.tables import COUNTED, blocked_keys

    with open_store() as store:
        found = [dict(row._mapping) for row in overview.blocked_keys(store, limit)]
        more = overview.count_blocked_keys(store, COUNTED) - len(found) if len(found) == limit else 0
    if as_json:
        echo_json({"blocked": found, "more": max(0, more)})
    elif found:
        console().print(blocked_keys(found))
        if more > 0:
            about = " or more" if more + len(found) >= COUNTED else ""
            say(f"There are {more:,}{about} more: --limit shows them.", err=True)
    else:
        say("No key is held up.")
    raise SystemExit(bool(found))
