"""`outbox-tasks feed`: databases from which the relay copies messages."""

from __future__ import annotations

from dataclasses import asdict

import click

from outbox_tasks.cli.shared.acts import stoppable
from outbox_tasks.cli.shared.output import answer, json_option
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.feeds.bridge import bridge_all
from outbox_tasks.feeds.source import open_source
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.operating.overview import FeedState
from outbox_tasks.operating.wake import wake
from outbox_tasks.text import one_line


@click.group()
def feed() -> None:
    """Databases from which the relay copies messages."""


@feed.command()
@click.argument("url")
@click.option("--schema", help="Where its tables are; else where the connection makes tables.")
def init(url: str, schema: str | None) -> None:
    """Create the tables of a feed in an application's own database, and print the statements."""
    source = open_source("init", url, schema)
    try:
        click.echo(source.init(), nl=False)
    finally:
        source.close()


@feed.command()
@click.argument("name", required=False)
@json_option
def run(name: str | None) -> None:
    """Copy what a feed has, or all feeds, one after the other. Exit code 1 if one could not be copied."""
    with open_store() as store, stoppable() as stopped:
        results = bridge_all(store, stopped.is_set, name)
        if any(bridged.copied for bridged in results.values()):
            wake(store.settings)
    lines = []
    for feed_name, bridged in results.items():
        text = f"copied {bridged.copied:,}, {bridged.dead:,} dead" if bridged.taken else "left alone"
        lines.append(one_line(f"{feed_name}: {bridged.error or text}"))
    answer({feed_name: asdict(bridged) for feed_name, bridged in results.items()}, "\n".join(lines) or None)
    raise SystemExit(any(bridged.error for bridged in results.values()))


@feed.command()
@json_option
def status() -> None:
    """Show each feed: what was copied, what waits, and what is wrong. Exit code 1 if one is in trouble."""
    with open_store() as store:
        states = Feeds(store).states()
    answer([state._asdict() for state in states], "\n".join(one_line(_line(state)) for state in states) or None)
    raise SystemExit(any(state.failures for state in states))


def _line(state: FeedState) -> str:
    text = f"{state.name}: copied {state.copied:,}, {state.waiting:,} wait"
    if state.error is not None:
        text += f"; it fails for {state.failing or 0:.0f} s: {state.error}"
    return text
