"""`outbox-tasks init`: the tables, and what database roles may do with them."""

from __future__ import annotations

from typing import get_args

import click

from outbox_tasks.cli.shared.options import together
from outbox_tasks.cli.shared.output import answer, json_option, say
from outbox_tasks.cli.shared.store import relay_settings
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.rights import Kind
from outbox_tasks.database.schema import VERSION
from outbox_tasks.migrations import finish, grant, grants, migrations, upgrade

MAY: dict[Kind, str] = {
    "writer": "write messages",
    "worker": "run supervised tasks, and keep an inbox",
    "relay": "run the relay",
    "operator": "find and mend messages, and pause destinations",
    "reader": "see states, counts and errors, but no payloads",
}


ROLE = "Let this database role {}, and do nothing else."


@click.command()
@together(*(click.option(f"--{kind}", multiple=True, metavar="ROLE", help=ROLE.format(MAY[kind])) for kind in MAY))
@click.option("--sql", is_flag=True, help="Print the GRANT statements for the roles, and run nothing.")
@click.option(
    "--finish", "last", is_flag=True, help="No process of an earlier release is left: do what had to wait for that."
)
@json_option
def init(sql: bool, last: bool, **roles: tuple[str, ...]) -> None:
    """Create the outbox tables, or upgrade them to this release.

    Safe to run twice, and on many hosts at once.
    """
    chosen = [(kind, role) for kind in get_args(Kind) for role in roles[kind]]
    if sql and not chosen:
        raise click.UsageError(f"say which roles: {', '.join(f'--{kind} ROLE' for kind in MAY)}")
    settings = relay_settings()
    with migrating(settings) as connection:
        if sql:
            for kind, role in chosen:
                for statement in grants(connection, kind, role, settings.database_schema):
                    say(statement)
            return
    applied: list[int] = []
    for version in migrations():  # each is its own transaction: it keeps no lock of another one
        with migrating(settings) as connection:
            applied += upgrade(connection, settings.database_schema, to=version)
    with migrating(settings) as connection:
        finished = finish(connection, settings.database_schema) if last else []
        for kind, role in chosen:
            grant(connection, kind, role, settings.database_schema)
    now = (
        f"now at version {VERSION} (applied: {', '.join(map(str, applied))})"
        if applied
        else f"already at version {VERSION}"
    )
    lines = [f"The outbox tables are {now}."]
    if last:
        lines.append(f"Upgrades that are now finished: {', '.join(map(str, finished)) or 'none was left'}.")
    lines += [f"The role {role} may {MAY[kind]}." for kind, role in chosen]
    given = {f"{kind}s": roles[kind] for kind in MAY}
    answer({"version": VERSION, "applied": applied, "finished": finished, **given}, "\n".join(lines))
