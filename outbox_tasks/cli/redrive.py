"""`outbox-tasks redrive`: send dead letters again."""

from __future__ import annotations

from typing import Any

import click

from outbox_tasks.cli.shared.acts import act, choice_options


@click.command()
@choice_options
def redrive(**given: Any) -> None:
    """Send dead letters again: these IDS, or all that match the filters.

    They are due at once, have all their attempts again, and their age counts from now. A message with a key keeps its
    place in the order of the key. Ctrl-C stops after the current batch; redriven messages stay redriven. Exit code 1
    if it was stopped, or if one of the IDS is not dead.
    """
    act("redrive", (), **given)
