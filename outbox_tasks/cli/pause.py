"""The commands for destinations: to leave one alone, and to go on."""

from __future__ import annotations

import click

from outbox_tasks.cli.acts import person
from outbox_tasks.cli.common import echo_json, json_option, open_store, say
from outbox_tasks.operating import pauses


@click.command(short_help="Leave a destination alone until it is resumed.")
@click.argument("destination")
@person
@json_option
def pause(destination: str, who: str, why: str | None, as_json: bool) -> None:
    """Leave a destination alone until `resume`: its messages wait, and spend no attempts."""
    with open_store(destination) as store:
        pauses.pause(store, destination, who, why)
    if as_json:
        echo_json({"paused": destination})
    else:
        say(f"{destination} is paused. Its messages wait.")


@click.command(short_help="End the pause of a destination, or its breaker's.")
@click.argument("destination")
@person
@json_option
def resume(destination: str, who: str, why: str | None, as_json: bool) -> None:
    """End the pause of a destination, or its breaker's: its messages are due again."""
    with open_store(destination) as store:
        changed = pauses.resume(store, destination, who, why)
    if as_json:
        echo_json({"resumed": destination, "changed": changed})
    else:
        say(f"{destination} goes on." if changed else f"{destination} was neither paused nor in trouble.")
