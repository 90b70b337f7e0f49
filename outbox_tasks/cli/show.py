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
    answer,
    cell,
    echo_raw,
    json_option,
    listed,
    remark,
)
from outbox_tasks.cli.shared.store import installed, open_store
from outbox_tasks.operating.messages.find import ARCHIVED, Lookup
from outbox_tasks.operating.messages.life import HISTORY_KEPT, UNTIL, error_of, life, tracebacks
from outbox_tasks.operating.messages.payload import laid_out
from outbox_tasks.operating.messages.search import KINDS, Answer, search
from outbox_tasks.text import ago, moment, one_line, printable, shell_line

if TYPE_CHECKING:
    from celery import Celery

    from outbox_tasks.operating.problems import Examination
    from outbox_tasks.settings import Settings

PAYLOAD_CHARACTERS = 64 * 1024
"""How much of a payload is shown. With --payload all of it is printed."""


@click.command()
@click.argument("text", metavar="TEXT")
@click.option("--payload", "only_payload", is_flag=True, help="Print the bytes of the payload, and nothing else.")
@json_option
def show(text: str, only_payload: bool) -> None:
    """Show everything about a message, its history and its payload, and why it is where it is.

    TEXT is what you have of it: its id or the first eight digits of that, the id of its Celery task, event or
    aggregate, or its key. If several messages fit, they are listed. Exit code 1 if there is none.
    """
    app, _ = installed() or (None, None)
    with open_store() as store:
        examined = partial(_examined, store.settings, app)
        results = search(store, text, examined)
        message = None if results.only is None else Lookup(store, examined).one(results.only)
    if message is None and only_payload:
        raise click.UsageError(f"{len(results.messages)} messages fit, and --payload is for one: name its id.")
    if message is None:
        answer(asdict(results), _listed(results))
        remark(*_remarks(results))
        raise SystemExit(0 if results.messages else 1)
    if only_payload:
        echo_raw(message["payload"])
    else:
        answer(_with_text(message), _message(message))


def _listed(results: Answer) -> RenderableType | None:
    """Each message on a line, and below it why it is where it is."""
    if not results.messages:
        return None
    lines = []
    for message in results.messages:
        lines.append(listed(message))
        kinds = ", ".join(KINDS[kind] for kind in message["kinds"])
        lines.append(Text(f"  {kinds}{': ' + one_line(str(message['waits'])) if message['waits'] else ''}", "dim"))
    return Group(*lines)


def _remarks(results: Answer) -> Iterator[str]:
    if results.more:
        yield f"There may be more: {shell_line('list', '--key', results.text)}"
    if not results.messages:
        yield f"No message fits {results.text!r}. It may be that:"
    yield from (f"- {reason}" for reason in results.reasons)


def _examined(settings: Settings, app: Celery | None) -> Examination:
    # It loads Celery, and not every message needs it.
    from outbox_tasks.operating.problems import examine

    return examine(settings, app)


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    """The message for JSON: a payload that is not text in base64."""
    payload, rest = message["payload"], {name: value for name, value in message.items() if name != "payload"}
    try:
        return {**rest, "payload": payload.decode()}
    except ValueError:
        return {**rest, "payload_base64": base64.b64encode(payload).decode()}


def _message(message: dict[str, Any]) -> RenderableType:
    """The facts, the history and the payload."""
    parts: list[RenderableType] = [Text(f"Message {message['id']}", "bold"), _grid(_facts(message))]
    events = ((event.at if isinstance(event.at, str) else moment(event.at), event.text) for event in life(message))
    parts += [Text("\nHistory", "bold"), _grid(events)]
    if len(message["history"]) >= HISTORY_KEPT:
        parts.append(Text(f"Of a long history, the first entry and the last {HISTORY_KEPT - 1} are kept.", "dim"))
    if traces := tracebacks(message):
        parts += [Text("\nTraceback", "bold"), Text(printable(traces[-1]))]
    heading = f"\nPayload, {printable(message['content_type'])}, {len(message['payload']):,} bytes"
    parts += [Text(heading, "bold"), Text(shown_payload(message["payload"]))]
    return Group(*parts)


def _grid(rows: Iterable[tuple[str, Any]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(cell(name), value if isinstance(value, Text) else Text(printable(str(value))))
    return grid


def _facts(message: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "state", Text(message["state"], STATE_STYLES[message["state"]])
    yield "why", Text(printable(str(message["waits"])), "" if message["state"] in ARCHIVED else "yellow")
    yield "event type", message["event_type"]
    yield "destination", message["destination"]
    if message["aggregate_type"] or message["aggregate_id"]:
        yield "aggregate", " ".join(filter(None, (message["aggregate_type"], message["aggregate_id"])))
    for other in message["elsewhere"]:
        yield "also at", f"{other['destination']}: {other['id']} ({other['state']})"
    if message["key"] is not None:
        yield "key", message["key"]
    if message["priority"]:
        yield "priority", {1: "high", -1: "low"}[message["priority"]]
    for name in ("created_at", "deliver_at", "handed_at", "dead_at", "finished_at"):
        if message.get(name) is not None:
            yield name.replace("_", " "), _moment(message[name])
    if message["state"] in UNTIL and message["locked_until"] is not None:
        yield UNTIL[message["state"]], _moment(message["locked_until"])
    if message["lease"] is not None:
        begun = "begun" if message["begun"] else "not begun"
        yield "lease", f"{message['lease']}, {begun}, held by {message['locked_by']}"
    spared = f", {message['spared']} of them don't count" if message["spared"] else ""
    yield "attempts", f"{message['attempts']}{spared}"
    if error_of(message):
        yield "last error", Text(error_of(message), "red")
    if message["group"]:
        yield "error group", message["group"]
    for name, value in (message["headers"] or {}).items() if isinstance(message["headers"], dict) else ():
        yield "header", f"{name}: {value}"


def _moment(at: Any) -> str:
    return f"{moment(at)} ({ago(at)})"


def shown_payload(payload: bytes) -> str:
    """The beginning of a text."""
    text = laid_out(payload)
    if text is None:
        return "It is not text: --payload prints it"
    more = len(text) - PAYLOAD_CHARACTERS
    rest = f"\n… and {more:,} characters more: --payload prints all of it" if more > 0 else ""
    return printable(text[:PAYLOAD_CHARACTERS]) + rest
