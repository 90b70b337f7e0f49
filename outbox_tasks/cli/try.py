"""`outbox-tasks try`: send at once what waits for another attempt."""

# ruff: noqa: N999 - the file has the name of its command

from __future__ import annotations

from typing import Any

import click

from outbox_tasks.cli.shared.acts import act, choice_options


@click.command("try")
@choice_options
def try_now(**given: Any) -> None:
    """Try messages at once that wait for another attempt: these IDS, or all that match the filters.

    Their attempts and the order of their keys stay. With --destination and no other filter, an open circuit is tried at
    once, too. A pause by a person stays: see resume. Ctrl-C stops after the current batch. Exit code 1 if it was
    stopped, or if one of the IDS does not wait for an attempt.
    """
    act("try", (), **given)
