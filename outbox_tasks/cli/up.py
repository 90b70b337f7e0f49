"""`outbox-tasks up`: the whole relay on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console


@click.command()
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Keep the servers' data here. Without it: for this run only."
)
@click.option(
    "--publishers", default=2, show_default=True, type=click.IntRange(1, 64), help="How many publish workers."
)
@click.option("--relay/--no-relay", default=True, show_default=True, help="Without: database, broker and tables only.")
@click.option("--flower/--no-flower", default=True, show_default=True, help="Start Flower, which shows the tasks.")
@click.option("--web/--no-web", default=True, show_default=True, help="Start the page, to look and to act.")
def up(directory: Path | None, publishers: int, relay: bool, flower: bool, web: bool) -> None:
    """Run the whole relay here, until Ctrl-C.

    Starts claim and publish workers, beat, the page and Flower. Without OUTBOX_DATABASE_URL it also starts a
    PostgreSQL, and without OUTBOX_BROKER_URL a Redis-compatible server. With --no-relay it starts these servers alone,
    for an application that runs the relay itself.
    """
    from outbox_tasks.local.up import servers_only
    from outbox_tasks.local.up import up as run

    if relay:
        run(os.environ, directory=directory, publishers=publishers, flower=flower, web=web, console=Console())
    else:
        servers_only(os.environ, directory=directory, console=Console())
