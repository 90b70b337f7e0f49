"""`outbox-tasks discard`: give messages up."""

from __future__ import annotations

from typing import Any

import click

from outbox_tasks.cli.shared.acts import act, choice_options
from outbox_tasks.operating.messages.filters import CHANGEABLE


@click.command()
@click.option(
    "--state", "states", multiple=True, type=click.Choice(CHANGEABLE["discard"]),
    help="With filters: only this state; may be given again. Without it: dead.",
)  # fmt: skip
@choice_options
def discard(states: tuple[str, ...], **given: Any) -> None:
    """Give messages up: they go to the archive as discarded, and are never sent.

    Takes these IDS if they are dead or still wait, or all messages that match the filters: dead ones, unless --state
    names others. Ctrl-C stops after the current batch. Exit code 1 if it was stopped, or if one of the IDS could not
    be discarded.
    """
    act("discard", states, **given)
