"""The commands that set up the relay, and run it on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from outbox_tasks.cli.common import echo_json, json_option, say


@click.command()
@click.option("--writer", "writers", multiple=True, metavar="ROLE", help="Let this role write messages, and no more.")
@json_option
def init(writers: tuple[str, ...], as_json: bool) -> None:
    """Create the outbox tables, or upgrade them to this release.

    Safe to run twice, and on many hosts at once.
    """
    from outbox_tasks.database.connection import migrating
    from outbox_tasks.database.schema import VERSION
    from outbox_tasks.migrations import grant_writer, upgrade
    from outbox_tasks.settings import Settings

    settings = Settings()
    with migrating(settings) as connection:
        applied = upgrade(connection, settings.database_schema)
        for role in writers:
            grant_writer(connection, role, settings.database_schema)
    if as_json:
        echo_json({"version": VERSION, "applied": applied, "writers": writers})
    elif applied:
        say(f"The outbox tables are now at version {VERSION} (applied: {', '.join(map(str, applied))}).")
    else:
        say(f"The outbox tables are already at version {VERSION}.")
    for role in () if as_json else writers:
        say(f"The role {role} may write messages.")


@click.command()
@click.option("--directory", type=click.Path(path_type=Path), help="Keep the embedded servers' data here.")
@click.option("--publishers", default=2, show_default=True, type=click.IntRange(1, 64), help="Publish workers.")
@click.option("--flower/--no-flower", default=True, show_default=True, help="Watch the tasks in a browser.")
def up(directory: Path | None, publishers: int, flower: bool) -> None:
    """Run the whole relay here, until Ctrl-C.

    Starts claim and publish workers, beat and Flower, and a PostgreSQL and a Redis-compatible server of its own
    where OUTBOX_DATABASE_URL or OUTBOX_BROKER_URL is not set.
    """
    from rich.console import Console

    from outbox_tasks.local.up import up as run

    raise SystemExit(run(os.environ, directory=directory, publishers=publishers, flower=flower, console=Console()))


@click.command()
@click.option("--for", "seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after so many seconds.")
@json_option
def drain(seconds: float | None, as_json: bool) -> None:
    """Send what is due from this process, without workers, then end.

    For cron, or a function that runs on a schedule. It takes the same leases as the workers, so that several may run at
    once, beside workers too. What fails is due again later, by its backoff. Ctrl-C and SIGTERM end it after the bundle
    in hand. Exit code 1 if a message is dead, or while something due could not be sent: it says which destination is
    left alone, and why.
    """
    from outbox_tasks.cli.drain import run

    raise SystemExit(run(seconds, as_json=as_json))


@click.command(short_help="Show the relay at work, with failures and a kill -9.")
@json_option
@click.option("--orders", default=5000, show_default=True, type=click.IntRange(1, 1_000_000), help="Orders to commit.")
def demo(as_json: bool, orders: int) -> None:
    """Show the relay at work, and count at the destination what arrived.

    Orders are committed with their messages, others are rolled back, a destination fails sometimes, one message
    can never be delivered, and a publish worker is killed in the middle. Exit code 0 only if nothing was lost and
    nothing that was rolled back was delivered.
    """
    from outbox_tasks.local.demo import demo as run

    raise SystemExit(run(orders=orders, as_json=as_json))


@click.command(short_help="Measure the relay against raw Celery on this machine.")
@json_option
@click.option("--messages", default=50_000, show_default=True, type=click.IntRange(100, 1_000_000))
def bench(as_json: bool, messages: int) -> None:
    """Measure the relay against raw Celery, side by side on this machine."""
    from outbox_tasks.local.bench import bench as run

    raise SystemExit(run(messages=messages, as_json=as_json))
