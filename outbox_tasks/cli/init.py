"""`outbox-tasks init`: the tables."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.output import echo_json, json_option, say
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.schema import VERSION
from outbox_tasks.migrations import grant_writer, upgrade
from outbox_tasks.settings import Settings


@click.command()
@click.option(
    "--writer", "writers", multiple=True, metavar="ROLE", help="Let this role write messages, and nothing else."
)
@json_option
def init(writers: tuple[str, ...], as_json: bool) -> None:
    """Create the outbox tables, or upgrade them to this release.

    Safe to run twice, and on many hosts at once.
    """
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
