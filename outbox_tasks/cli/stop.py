"""`outbox-tasks stop`: end an act that is under way."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.options import who_option
from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.background import Runner


@click.command()
@click.argument("number", type=int, metavar="NO")
@who_option
@json_option
def stop(number: int, who: str) -> None:
    """End the act with this number in the audit after its current batch: see status. What it has changed stays changed.

    Exit code 1 if it is not under way.
    """
    with open_store() as store:
        stopped = Runner(store).stop(number, who)
    text = "is stopped" if stopped else "is not under way"
    answer({"stopped": stopped}, f"No. {number} {text}.")
    raise SystemExit(not stopped)
