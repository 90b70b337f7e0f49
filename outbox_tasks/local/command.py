"""`outbox-tasks up` and `demo`: the relay on this machine."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from outbox_tasks.cli.shared.output import json_option, wants_json


@click.command()
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Keep the servers' data here. Without it: for this run only."
)
@click.option(
    "--publishers", default=2, show_default=True, type=click.IntRange(1, 64), help="How many publish workers."
)
@click.option("--relay/--no-relay", default=True, show_default=True, help="Without: database, broker and tables only.")
def up(directory: Path | None, publishers: int, relay: bool) -> None:
    """Run the whole relay here, until Ctrl-C.

    Starts claim and publish workers, beat, the page and Flower. Without OUTBOX_DATABASE_URL it also starts a
    PostgreSQL, and without OUTBOX_BROKER_URL a Redis-compatible server. With --no-relay it starts these servers alone,
    for an application that runs the relay itself. If one of the processes ends by itself, all of them are stopped.
    """
    from outbox_tasks.local.up import up as run

    run(directory=directory, publishers=publishers, relay=relay, console=Console())


@click.command()
@json_option
@click.option(
    "--orders", default=5000, show_default=True, type=click.IntRange(1, 1_000_000), help="How many orders to commit."
)
def demo(orders: int) -> None:
    """Show the relay at work, and count at the destination what arrived.

    It commits orders with their messages, and rolls others back. The destination fails sometimes, one message can
    never be delivered, and a publish worker is killed while it sends. Exit code 0 only if no message was lost and
    no rolled-back message was delivered.
    """
    from outbox_tasks.local.demo import demo as run

    raise SystemExit(run(orders=orders, as_json=wants_json()))
