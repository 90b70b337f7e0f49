"""`outbox-tasks resume`: send to a destination again."""

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
def resume(destination: str, who: str, why: str | None) -> None:
    """End the pause of a destination, or close its breaker: its messages are due again."""
    with open_store(destination) as store:
        changed = pauses.resume(store, destination, who, why)
    said = "goes on" if changed else "was neither paused nor in trouble"
    answer({"resumed": destination, "changed": changed}, f"{destination} {said}.")
