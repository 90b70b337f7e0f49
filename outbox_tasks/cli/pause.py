"""`outbox-tasks pause`: send nothing to a destination."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.options import who_and_why
from outbox_tasks.cli.shared.output import echo_json, json_option, say
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import pauses


@click.command()
@click.argument("destination")
@who_and_why
@json_option
def pause(destination: str, who: str, why: str | None, as_json: bool) -> None:
    """Send nothing to a destination until it is resumed: its messages wait, and spend no attempts."""
    with open_store(destination) as store:
        pauses.pause(store, destination, who, why)
    if as_json:
        echo_json({"paused": destination})
    else:
        say(f"{destination} is paused. Its messages wait.")
