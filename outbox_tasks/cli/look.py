"""The commands that show what is going on."""

from __future__ import annotations

import click

from outbox_tasks.cli.common import console, echo_json, json_option, open_store


@click.command(short_help="List the keys that are held up, and by which message.")
@click.option("--blocked", is_flag=True, help="Those held up by a dead message: the default, and so far all there is.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="So many at most.")
@json_option
def keys(blocked: bool, limit: int, as_json: bool) -> None:
    """List the keys that are held up: by which message, since when, how many wait. Exit code 1 if there are any."""
    from outbox_tasks.cli.tables import keys_as_table

    with open_store() as store:
        found = [dict(row._mapping) for row in store.blocked_keys(limit)]
    if as_json:
        echo_json({"blocked": found})
    elif found:
        console().print(keys_as_table(found))
    else:
        click.echo("No key is held up.")
    raise SystemExit(bool(found))
