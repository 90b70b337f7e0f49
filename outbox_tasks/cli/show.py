"""`outbox-tasks show`: everything about one message."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outbox_tasks.cli.shared.output import (
    STATE_STYLES,
    ago,
    answer,
    cell,
    echo_raw,
    json_option,
    listed,
    say,
    wants_json,
)
from outbox_tasks.cli.shared.store import installed, open_store
from outbox_tasks.operating.messages.find import ARCHIVED, Lookup
from outbox_tasks.operating.messages.life import HISTORY_KEPT, UNTIL, error_of, life, tracebacks
from outbox_tasks.operating.messages.payload import hexadecimal, laid_out
from outbox_tasks.operating.messages.search import KINDS, Answer, search
from outbox_tasks.text import many, moment, one_line, printable, shell_line

if TYPE_CHECKING:
    from celery import Celery

    from outbox_tasks.operating.problems import Examination
    from outbox_tasks.settings import Settings

PAYLOAD_CHARACTERS, PAYLOAD_HEX_LINES = 64 * 1024, 32
"""How much of a payload is shown. With --payload all of it is printed."""


@click.command()
@click.argument("text", metavar="TEXT")
@click.option("--payloads", is_flag=True, help="Look into payloads too, for two seconds at most.")
@click.option("--payload", "only_payload", is_flag=True, help="Print the bytes of the payload, and nothing else.")
@json_option
def show(text: str, payloads: bool, only_payload: bool) -> None:
    """Show everything about a message, its history and its payload, and why it is where it is.

    TEXT is what you have of it: its id or the first eight digits of that, the id of its Celery task, event or
    aggregate, or its key. If several messages fit, they are listed. Exit code 1 if there is none.
    """
    app, _ = installed() or (None, None)
    with open_store() as store:
        examined = partial(_examined, store.settings, app)
        answered = search(store, text, examined, payloads=payloads)
        found = None if answered.only is None else Lookup(store, examined).one(answered.only)
    if found is None and only_payload:
        raise click.UsageError(f"{len(answered.messages)} messages fit, and --payload is for one: name its id.")
    if found is None:
        answer(asdict(answered), _listed(answered))
        for line in _remarks(answered) if not wants_json() else ():
            say(line, err=True)
        raise SystemExit(0 if answered.messages else 1)
    if only_payload:
        echo_raw(found["payload"])
    else:
        answer(_with_text(found), _message(found))


def _listed(answered: Answer) -> RenderableType | None:
    """Each message on a line, and below it why it is where it is."""
    if not answered.messages:
        return None
    lines = []
    for message in answered.messages:
        lines.append(listed(message))
        kinds = ", ".join(KINDS[kind] for kind in message["kinds"])
        lines.append(Text(f"  {kinds}{': ' + one_line(str(message['waits'])) if message['waits'] else ''}", "dim"))
    return Group(*lines)


def _remarks(answered: Answer) -> Iterator[str]:
    if answered.more:
        yield f"There may be more: {shell_line('list', '--key', answered.text)}"
    if (looked := answered.payloads) is not None and not looked.complete:
        far = "" if looked.back_to is None else f", back to those of {moment(looked.back_to)}"
        yield f"Looked into {many(looked.count, 'payload')}{far}: that took two seconds."
    if not answered.messages:
        yield f"No message fits {answered.text!r}. It may be that:"
    yield from (f"- {reason}" for reason in answered.reasons)


def _examined(settings: Settings, app: Celery | None) -> Examination:
    # It loads Celery, and not every message needs it.
    from outbox_tasks.operating.problems import examine

    return examine(settings, app)


def _with_text(found: dict[str, Any]) -> dict[str, Any]:
    """The message for JSON: a payload that is not text in base64."""
    payload, rest = found["payload"], {name: value for name, value in found.items() if name != "payload"}
    try:
        return {**rest, "payload": payload.decode()}
    except ValueError:
        return {**rest, "payload_base64": base64.b64encode(payload).decode()}


def _message(one: dict[str, Any]) -> RenderableType:
    """The facts, the history and the payload."""
    parts: list[RenderableType] = [Text(f"Message {one['id']}", "bold"), _grid(_facts(one))]
    events = ((event.at if isinstance(event.at, str) else moment(event.at), event.text) for event in life(one))
    parts += [Text("\nHistory", "bold"), _grid(events)]
    if len(one["history"]) >= HISTORY_KEPT:
        parts.append(Text(f"Of a long history, the first entry and the last {HISTORY_KEPT - 1} are kept.", "dim"))
    if traces := tracebacks(one):
        parts += [Text("\nTraceback", "bold"), Text(printable(traces[-1]))]
    size = f"{len(one['payload']):,} bytes"
    parts += [Text(f"\nPayload, {printable(one['content_type'])}, {size}", "bold"), Text(shown_payload(one["payload"]))]
    return Group(*parts)


def _grid(rows: Iterable[tuple[str, Any]]) -> Table:
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(cell(name), value if isinstance(value, Text) else Text(printable(str(value))))
    return made


def _facts(one: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "state", Text(one["state"], STATE_STYLES[one["state"]])
    yield "why", Text(printable(str(one["waits"])), "" if one["state"] in ARCHIVED else "yellow")
    yield "event type", one["event_type"]
    yield "destination", one["destination"]
    if one["aggregate_type"] or one["aggregate_id"]:
        yield "aggregate", " ".join(filter(None, (one["aggregate_type"], one["aggregate_id"])))
    for other in one["elsewhere"]:
        yield "also at", f"{other['destination']}: {other['id']} ({other['state']})"
    if one["key"] is not None:
        yield "key", one["key"]
    if one["priority"]:
        yield "priority", {1: "high", -1: "low"}[one["priority"]]
    for name in ("created_at", "deliver_at", "handed_at", "dead_at", "finished_at"):
        if one.get(name) is not None:
            yield name.replace("_", " "), _moment(one[name])
    if one["state"] in UNTIL and one["locked_until"] is not None:
        yield UNTIL[one["state"]], _moment(one["locked_until"])
    if one["lease"] is not None:
        yield "lease", f"{one['lease']}, {'begun' if one['begun'] else 'not begun'}, held by {one['locked_by']}"
    elif one["locked_by"]:
        yield "last held by", one["locked_by"]
    yield "attempts", f"{one['attempts']}, {one['spared']} of them don't count" if one["spared"] else one["attempts"]
    if error_of(one):
        yield "last error", Text(error_of(one), "red")
    if one["group"]:
        yield "error group", one["group"]
    for name, value in (one["headers"] or {}).items() if isinstance(one["headers"], dict) else ():
        yield "header", f"{name}: {value}"


def _moment(at: Any) -> str:
    return f"{moment(at)} ({ago(at)})"


def shown_payload(payload: bytes) -> str:
    """Text, or the first bytes as hexadecimal numbers."""
    text = laid_out(payload)
    if text is None:
        return hexadecimal(payload, PAYLOAD_HEX_LINES) + _rest(len(payload) - 16 * PAYLOAD_HEX_LINES, "bytes")
    return printable(text[:PAYLOAD_CHARACTERS]) + _rest(len(text) - PAYLOAD_CHARACTERS, "characters")


def _rest(count: int, unit: str) -> str:
    return f"\n… and {count:,} {unit} more: --payload prints all of it" if count > 0 else ""
