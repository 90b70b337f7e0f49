"""`outbox-tasks init`: the tables, and what database roles may do with them."""

from __future__ import annotations

from contextlib import closing
from typing import get_args

import click

from outbox_tasks.cli.shared.options import together
from outbox_tasks.cli.shared.output import answer, json_option, say
from outbox_tasks.cli.shared.store import installed, open_store, relay_settings
from outbox_tasks.database.connection import migrating
from outbox_tasks.database.rights import Kind
from outbox_tasks.database.schema import VERSION
from outbox_tasks.migrations import grant, grants, script, upgrade

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
@click.option("--sql", is_flag=True, help="Print the SQL of the tables or, with roles, their GRANTs, and run nothing.")
@click.option("--adopt-broker", is_flag=True, help="Take over the broker for this outbox, which was moved.")
@json_option
def init(sql: bool, adopt_broker: bool, **roles: tuple[str, ...]) -> None:
    """Create the outbox tables of this release, if they are not there.

    Safe to run twice, and on many hosts at once. It refuses tables of another version.

    A relay leaves in its broker which outbox it serves, and the relay of another outbox does not start there. After a
    move to another server, stop the relay at the old place, then run this with --adopt-broker: the relay at the old
    place claims nothing more.
    """
    if adopt_broker and (sql or any(roles.values())):
        raise click.UsageError("--adopt-broker goes without --sql and without roles")
    if adopt_broker:
        _adopt_broker()
        return
    chosen = [(kind, role) for kind in get_args(Kind) for role in roles[kind]]
    settings = relay_settings()
    if sql and not chosen:
        say(script(settings.database_schema))
        return
    with migrating(settings) as connection:
        if sql:
            for kind, role in chosen:
                for statement in grants(connection, kind, role, settings.database_schema):
                    say(statement)
            return
        are_new = upgrade(connection, settings.database_schema)
        for kind, role in chosen:
            grant(connection, kind, role, settings.database_schema)
    lines = [f"The outbox tables are {'now' if are_new else 'already'} at version {VERSION}."]
    lines += [f"The role {role} may {MAY[kind]}." for kind, role in chosen]
    by_kind = {f"{kind}s": roles[kind] for kind in MAY}
    answer({"version": VERSION, "made": are_new, **by_kind}, "\n".join(lines))


def _adopt_broker() -> None:
    from outbox_tasks.broker.broker import Broker
    from outbox_tasks.worker.app import make_app

    app, settings = installed() or (None, relay_settings())
    with open_store(settings=settings) as store:
        outbox = store.identity
        with closing(Broker(app or make_app(settings), settings)) as broker:
            before = broker.adopt(outbox)
    answer({"outbox": outbox, "before": before}, f"The broker belongs to {outbox}. Before: {before or 'to none'}.")
