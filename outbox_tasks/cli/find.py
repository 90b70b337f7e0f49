"""The commands that find messages, and tell what is known of them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from outbox_tasks.cli.common import console, echo_json, json_option, open_store, say
from outbox_tasks.cli.filters import STATES, MessageId, as_filter, filters

if TYPE_CHECKING:
    from outbox_tasks.operating.messages.find import Found


@click.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be given again.")
@filters
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="So many at most.")
@json_option
def list_messages(states: tuple[str, ...], error: str | None, limit: int, as_json: bool, **given: Any) -> None:
    """List messages, the newest first.

    It looks at the newest messages, at the oldest that are not yet sent, and at what the filters lead to; not at
    millions of rows. It says if there may be more. Dead letters alone are listed the last to die first.
    """
    from outbox_tasks.operating.messages.find import Lookup

    wanted = as_filter(states, error, **given)
    with open_store() as store:
        found = Lookup(store).find(wanted, limit)
        known = store.settings.destinations
    if as_json:
        echo_json({"messages": found.messages, "complete": found.complete, "back_to": found.back_to})
        return
    if found.messages:
        from outbox_tasks.cli.messages import listed

        screen = console()
        screen.print(listed(found.messages, screen.width))
    for line in _remarks(found, limit):
        say(line, err=True)
    if not found.messages and wanted.destination is not None and wanted.destination not in known:
        say(f"No destination {wanted.destination!r} is configured.", err=True)


def _remarks(found: Found, limit: int) -> list[str]:
    if len(found.messages) == limit:
        return [f"These are {limit:,}; --limit shows more, and filters show less."]
    said = [] if found.messages else ["No such messages."]
    if not found.complete:
        far = f" back to those of {found.back_to.astimezone():%Y-%m-%d %H:%M:%S}" if found.back_to else ""
        said.append(
            f"Looked at {found.looked:,} messages{far}. For more, look further back with --older-than, or say more: "
            "--destination, --key, --state."
        )
    return said


@click.command()
@click.argument("id", type=MessageId())
@click.option("--payload", "only_payload", is_flag=True, help="Print the bytes of the payload, and nothing else.")
@json_option
def show(id: UUID, only_payload: bool, as_json: bool) -> None:
    """Show everything about one message, its history and its payload.

    Exit code 1 if there is no such message.
    """
    from outbox_tasks.errors import UnknownMessage
    from outbox_tasks.operating.messages.find import Lookup

    with open_store() as store:
        found = Lookup(store).one(id)
    if found is None:
        raise UnknownMessage(id=id)
    if only_payload:
        click.echo(found["payload"], nl=False)
    elif as_json:
        echo_json(_with_text(found))
    else:
        from outbox_tasks.cli.messages import message

        console().print(message(found))


def _with_text(found: dict[str, Any]) -> dict[str, Any]:
    """What is no text travels in base64."""
    payload = found.pop("payload")
    try:
        return {**found, "payload": payload.decode()}
    except ValueError:
        return {**found, "payload_base64": base64.b64encode(payload).decode()}


@click.command(short_help="Show what the dead letters died of, in groups.")
@click.option("--destination", metavar="NAME", help="Only those of this destination.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="So many groups at most.")
@json_option
def errors(destination: str | None, limit: int, as_json: bool) -> None:
    """Show what the dead letters died of, in groups: how many, since when, an example.

    One group is one destination, event type and error, whatever numbers and names the error has in it.
    """
    from outbox_tasks.operating.messages.find import COUNTED, MOST_GROUPS, Lookup

    with open_store() as store:
        found, complete = Lookup(store).groups(destination)
    shown = found[:limit]
    if as_json:
        for group in shown:
            group["redrive"] = f"outbox-tasks redrive --group {group['group']}"
        echo_json({"groups": shown, "complete": complete and len(shown) == len(found)})
        return
    if not found:
        say("There are no dead letters." if complete else "None were found.")
        return
    from outbox_tasks.cli.messages import groups

    screen = console()
    screen.print(groups(shown, COUNTED, screen.width))
    say("\nSee the last one of a group: outbox-tasks show ID. Send a group: outbox-tasks redrive --group GROUP.")
    if len(shown) < len(found):
        say(f"These are the largest {limit:,} of {len(found):,} groups; --limit shows more.", err=True)
    if not complete:
        say(f"Only the first {MOST_GROUPS:,} groups were looked at.", err=True)


@click.command(short_help="List who did what, and why.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="So many at most.")
@click.option(
    "--payload", "entry", type=int, metavar="NO", help="Print the payload that the edit of this number replaced."
)
@json_option
def audit(limit: int, entry: int | None, as_json: bool) -> None:
    """List who did what, and why, the last one first: redrives, discards, edits, purges, pauses."""
    from outbox_tasks.operating.messages.find import Lookup

    with open_store() as store:
        if entry is not None:
            former = Lookup(store).former_payload(entry)
            if former is None:
                raise click.ClickException(f"No. {entry} of the audit is no edit.")
            click.echo(former, nl=False)
            return
        found = Lookup(store).acts(limit)
    if as_json:
        echo_json({"acts": found})
    elif found:
        from outbox_tasks.cli.messages import acts

        screen = console()
        screen.print(acts(found, screen.width))
    else:
        say("Nobody has done anything yet.")
