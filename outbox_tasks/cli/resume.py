"""`outbox-tasks resume`: send to a destination again."""

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
def resume(destination: str, who: str, why: str | None, as_json: bool) -> None:
    """End the pause of a destination, or close its breaker: its messages are due again."""
    with open_store(destination) as store:
        changed = pauses.resume(store, destination, who, why)
    if as_json:
        echo_json({"resumed": destination, "changed": changed})
    else:
        say(f"{destination} goes on." if changed else f"{destination} was neither paused nor in trouble.")
