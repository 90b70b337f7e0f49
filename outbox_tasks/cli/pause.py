"""`outbox-tasks pause`: send nothing to a destination."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.options import who_and_why
from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating import pauses


@click.command()
@click.argument("destination")
@who_and_why
@json_option
def pause(destination: str, who: str, why: str | None) -> None:
    """Send nothing to a destination until it is resumed: its messages wait, and spend no attempts."""
    with open_store(destination) as store:
        pauses.pause(store, destination, who, why)
    answer({"paused": destination}, f"{destination} is paused. Its messages wait.")
