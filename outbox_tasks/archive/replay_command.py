"""`outbox-tasks replay`: send messages of the archive again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from outbox_tasks.archive.replay import Replay
from outbox_tasks.cli.shared.acts import check_choice, do
from outbox_tasks.cli.shared.options import ActOptions, act_options, filter_options, limit_and_rate
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.filters import as_filter
from outbox_tasks.operating.messages.find import ARCHIVED
from outbox_tasks.operating.messages.preview import Choice

TIME = click.DateTime([f"%Y-%m-%d{clock}" for clock in ("", "T%H:%M", "T%H:%M%z", "T%H:%M:%S", "T%H:%M:%S%z")])


@click.command()
@click.argument("ids", nargs=-1, type=click.UUID)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(ARCHIVED),
    help="Only this state; may be given again. Without it: sent.",
)  # fmt: skip
@filter_options
@click.option("--since", type=TIME, metavar="TIME", help="Sent from then on: 2026-11-22, 2026-11-22T15:30 (UTC).")
@click.option("--until", type=TIME, metavar="TIME", help="Sent until then.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--to", metavar="NAME", help="To this destination, not to that of each message.")
@click.option("--new-ids", is_flag=True, help="Consumers take them as new messages, not as repetitions.")
@limit_and_rate
@act_options
def replay(
    ids: tuple[UUID, ...],
    states: tuple[str, ...],
    error: str | None,
    since: datetime | None,
    until: datetime | None,
    everything: bool,
    to: str | None,
    new_ids: bool,
    limit: int | None,
    rate: float | None,
    options: ActOptions,
    **filters: Any,
) -> None:
    """Send messages of the archive again: these IDS, or all that match the filters.

    Copies are written behind all that waits, in their old order. They have the headers `replayed` and `replayed-id`.
    A copy keeps its id, so that consumers drop what they have; with --new-ids they take all of it again. Ctrl-C stops
    after the current batch. Exit code 1 if it was stopped.
    """
    filtered = any(value is not None for value in (error, since, until, *filters.values())) or bool(states)
    check_choice("replay: IDS, filters such as --since", ids, everything or filtered, limit)
    wanted = as_filter(states or ("sent",), error, **filters)
    since, until = (time and time.replace(tzinfo=time.tzinfo or UTC) for time in (since, until))
    chosen = Replay(wanted, since, until, tuple(dict.fromkeys(ids)), to, new_ids)
    with open_store() as store:
        do(store, Choice("replay", wanted, chosen.ids, chosen), replace(options, rate=rate, limit=limit))
