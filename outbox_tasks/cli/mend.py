"""`outbox-tasks redrive`, `try` and `discard`: what people do to messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from outbox_tasks.cli.shared.acts import check_choice, do
from outbox_tasks.cli.shared.options import (
    ActOptions,
    act_options,
    filter_options,
    limit_and_rate,
    together,
)  # fmt: skip
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.acts import Action
from outbox_tasks.operating.messages.filters import CHANGEABLE, as_filter, for_act
from outbox_tasks.operating.messages.preview import Choice

choice_options = together(
    click.argument("ids", nargs=-1, type=click.UUID),
    click.option("--group", metavar="GROUP", help="Only messages of this error group: see `list --by error`."),
    filter_options,
    click.option("--all", "everything", is_flag=True, help="All of them."),
    limit_and_rate,
    act_options,
)
"""Which messages: IDS or filters; how many, how fast; and `act_options`."""


@click.command()
@choice_options
def redrive(**values: Any) -> None:
    """Send dead letters again: these IDS, or all that match the filters.

    They are due at once, have all their attempts again, and their age counts from now. A message with a key keeps its
    place in the order of the key. Ctrl-C stops after the current batch; redriven messages stay redriven. Exit code 1
    if it was stopped, or if one of the IDS is not dead.
    """
    _act("redrive", (), **values)


@click.command("try")
@choice_options
def try_now(**values: Any) -> None:
    """Try messages at once that wait for another attempt: these IDS, or all that match the filters.

    Their attempts and the order of their keys stay. With --destination and no other filter, an open circuit is tried at
    once, too. A pause by a person stays: see resume. Ctrl-C stops after the current batch. Exit code 1 if it was
    stopped, or if one of the IDS does not wait for an attempt.
    """
    _act("try", (), **values)


@click.command()
@click.option(
    "--state", "states", multiple=True, type=click.Choice(CHANGEABLE["discard"]),
    help="With filters: only this state; may be given again. Without it: dead.",
)  # fmt: skip
@click.option("--delete", is_flag=True, help="Delete them for good: the archive does not keep them.")
@choice_options
def discard(states: tuple[str, ...], delete: bool, **values: Any) -> None:
    """Give messages up: they go to the archive as discarded, and are never sent.

    Takes these IDS if they are dead or still wait, or all messages that match the filters: dead ones, unless --state
    names others. Ctrl-C stops after the current batch. Exit code 1 if it was stopped, or if one of the IDS could not
    be discarded.
    """
    _act("purge" if delete else "discard", states, **values)


def _act(
    action: Action, states: tuple[str, ...], ids: Sequence[UUID], group: str | None, error: str | None,
    everything: bool, limit: int | None, rate: float | None, options: ActOptions, **values: Any,
) -> None:  # fmt: skip
    """Do it to the messages that the options choose. Takes the values of `choice_options`."""
    verb = "discard" if action == "purge" else action
    filtered = any(value is not None for value in (group, error, *values.values()))
    check_choice(f"{verb}: IDS, filters such as --destination", ids, everything or filtered, limit)
    wanted = for_act(verb, as_filter(states, error, group, **values), named=bool(ids))
    with open_store() as store:
        do(store, Choice(action, wanted, list(dict.fromkeys(ids))), replace(options, limit=limit, rate=rate))
