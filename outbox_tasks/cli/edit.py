"""`outbox-tasks edit`: mend the payload of a dead letter."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import BinaryIO
from uuid import UUID

import click
from rich.text import Text

from outbox_tasks.cli.shared.acts import do
from outbox_tasks.cli.shared.options import ActOptions, act_options
from outbox_tasks.cli.shared.output import answer, console, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.acts import Operator, is_json
from outbox_tasks.operating.messages.find import DEAD, Filter, Lookup
from outbox_tasks.operating.messages.payload import laid_out, mended
from outbox_tasks.operating.messages.preview import Choice
from outbox_tasks.text import printable


@click.command()
@click.argument("id", type=click.UUID)
@click.option("--payload", "source", type=click.File("rb"), metavar="FILE", help="The new payload; -: stdin.")
@click.option("--content-type", metavar="TYPE", help="The new content type.")
@click.option("--redrive", is_flag=True, help="Then send it.")
@act_options
def edit(id: UUID, source: BinaryIO | None, content_type: str | None, redrive: bool, options: ActOptions) -> None:
    """Mend the payload of a dead letter, in $EDITOR or from a file.

    The audit keeps the former payload: `outbox-tasks audit --payload NO` prints it. The message keeps its id. A
    consumer that took it despite the error recognises a repetition."""
    with open_store() as store:
        message = Lookup(store).dead_letter(id)
        former = message["payload"]
        kind = content_type or message["content_type"]
        payload = source.read() if source is not None else _edited(former, kind)
        operator = Operator(store, options.who, options.why)
        operator.check(message, payload, kind)
        if (payload, kind) == (former, message["content_type"]):
            raise click.ClickException("Nothing was changed.")
        if not wants_json():
            console().print(_difference(former, payload, message["content_type"], kind))
        plan = {"size": len(payload), "former_size": len(former)}
        if not options.agreed(plan, "Keep this payload" + (" and send it?" if redrive else "?")):
            return
        entry = operator.edit(id, former, payload, kind)
        if not (redrive and wants_json()):
            answer({"edited": id, "audit": entry}, f"Edited. The former payload: outbox-tasks audit --payload {entry}")
        if redrive:
            do(store, Choice("redrive", Filter(states=(DEAD,)), [id]), replace(options, yes=True))


def _edited(former: bytes, kind: str) -> bytes:
    """The payload as a person left it in the editor, which shows JSON on several lines."""
    text = laid_out(former)
    if text is None:
        raise click.UsageError("the payload is not text: give the new one with --payload FILE")
    written = click.edit(text, extension=".json" if is_json(kind) else ".txt", require_save=True)
    if written is None:
        raise click.ClickException("Nothing was changed.")
    # An editor ends a text with a newline.
    return mended(former, written if text.endswith("\n") else written.removesuffix("\n"))


def _difference(former: bytes, payload: bytes, former_kind: str, kind: str) -> Text:
    """What changes, line by line; the sizes if it is not text."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    before, after = (laid_out(each) or f"{len(each):,} bytes" for each in (former, payload))
    lines = [f"-{former_kind}", f"+{kind}"] if former_kind != kind else []
    lines += difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
    return Text("\n").join(Text(printable(line), styles.get(line[:1], "")) for line in lines)
