"""The command line: `outbox-tasks`, also found as `celery -A outbox_tasks outbox`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outbox_tasks import __version__
from outbox_tasks.errors import OutboxError

if TYPE_CHECKING:
    from outbox_tasks.store import Store


class Group(click.Group):
    """Ends with one line on stderr and exit code 1 for errors of the library's own."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OutboxError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="outbox-tasks")
def outbox() -> None:
    """A transactional outbox for Celery and SQLAlchemy.

    Settings come from OUTBOX_<NAME> variables and outbox.toml; OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL
    say where the database and Celery's broker are.
    """


@outbox.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def init(as_json: bool) -> None:
    """Create the outbox tables, or upgrade them to this release.

    Safe to run twice, and on many hosts at once.
    """
    from outbox_tasks.migrations import upgrade
    from outbox_tasks.schema import VERSION
    from outbox_tasks.settings import Settings
    from outbox_tasks.store import migrating

    settings = Settings()
    with migrating(settings) as connection:
        applied = upgrade(connection, settings.database_schema)
    if as_json:
        click.echo(json.dumps({"version": VERSION, "applied": applied}))
    elif applied:
        click.echo(f"The outbox tables are now at version {VERSION} (applied: {', '.join(map(str, applied))}).")
    else:
        click.echo(f"The outbox tables are already at version {VERSION}.")


@outbox.command()
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


@outbox.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--orders", default=5000, show_default=True, type=click.IntRange(1, 1_000_000), help="Orders to commit.")
def demo(as_json: bool, orders: int) -> None:
    """Show the relay at work, and count at the destination what arrived.

    Orders are committed with their messages, others are rolled back, a destination fails sometimes, one message
    can never be delivered, and a publish worker is killed in the middle. Exit code 0 only if nothing was lost and
    nothing that was rolled back was delivered.
    """
    from outbox_tasks.local.demo import demo as run

    raise SystemExit(run(orders=orders, as_json=as_json))


@outbox.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--messages", default=50_000, show_default=True, type=click.IntRange(100, 1_000_000))
def bench(as_json: bool, messages: int) -> None:
    """Measure the relay against raw Celery, side by side on this machine."""
    from outbox_tasks.local.bench import bench as run

    raise SystemExit(run(messages=messages, as_json=as_json))


@outbox.command()
@click.argument("destination")
@click.option("--why", help="For whoever finds it paused.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pause(destination: str, why: str | None, as_json: bool) -> None:
    """Leave a destination alone until `resume`: its messages wait, and spend no attempts."""
    import getpass

    with _store(destination) as store:
        store.pause(destination, getpass.getuser(), why)
    click.echo(json.dumps({"paused": destination}) if as_json else f"{destination} is paused. Its messages wait.")


@outbox.command()
@click.argument("destination")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resume(destination: str, as_json: bool) -> None:
    """End the pause of a destination, or its breaker's: its messages are due again."""
    with _store(destination) as store:
        changed = store.resume(destination)
    if as_json:
        click.echo(json.dumps({"resumed": destination, "changed": changed}))
    else:
        click.echo(f"{destination} goes on." if changed else f"{destination} was neither paused nor in trouble.")


@outbox.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(as_json: bool) -> None:
    """Show the destinations: which are paused, or left alone because they are out of reach, and why."""
    from outbox_tasks.status import as_table, destinations

    with _store() as store:
        found = destinations(store)
    if as_json:
        click.echo(json.dumps({"destinations": found}, default=str))
    else:
        from rich.console import Console

        Console().print(as_table(found))


@contextmanager
def _store(destination: str | None = None) -> Iterator[Store]:
    """The store of the settings, whose tables are of this release and which know the destination."""
    from outbox_tasks.settings import Settings
    from outbox_tasks.store import Store

    settings = Settings()
    if destination is not None and destination not in settings.destinations:
        known = ", ".join(sorted(settings.destinations)) or "none"
        raise click.BadParameter(f"{destination!r} is not configured; known: {known}", param_hint="DESTINATION")
    store = Store.connect(settings)
    try:
        store.check_version()
        yield store
    finally:
        store.close()


def main() -> None:
    """The entry point of `outbox-tasks`."""
    outbox(prog_name="outbox-tasks")
