"""What redrive, try, discard, replay and edit share: show what would be done, ask, do it, and say what was done."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from threading import Event
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import click

from outbox_tasks.cli.shared.options import ActOptions
from outbox_tasks.cli.shared.output import STATE_STYLES, console, echo_json, say, table, wants_json
from outbox_tasks.errors import OutboxError
from outbox_tasks.operating.messages.acts import Done, Kind
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.filters import DONE
from outbox_tasks.operating.messages.preview import Choice, Preview
from outbox_tasks.operating.messages.preview import preview as look_ahead
from outbox_tasks.relay.store import Store
from outbox_tasks.text import many, one_line

if TYPE_CHECKING:
    from rich.table import Table

WHY_NOT = {
    "redrive": "they were on their way, or somebody else had changed them",
    "try": "they were due already, or on their way",
    "replay": "copies of the same id wait already",
}
"""Why messages may be left as they are, by the act."""


def check_choice(what: str, ids: Sequence[UUID], filtered: bool, limit: int | None) -> None:
    """Raises `UsageError` unless either ids or filters were given."""
    if ids and (filtered or limit):
        raise click.UsageError("give IDS, or filters, not both")
    if not (ids or filtered):
        raise click.UsageError(f"say which messages to {what}, or --all")


def do(store: Store, choice: Choice, options: ActOptions) -> None:
    """Show what would be done, ask, do it, and say what was done."""
    preview, limit = look_ahead(store, choice), options.limit
    plan, added = preview.plan, choice.added
    if not wants_json():
        _show(choice, preview)
    count = preview.count if plan is not None else len(choice.ids)
    first = f"the first {limit:,} of " if limit is not None and limit < count else ""
    to = f" to {added.to}" if added is not None and added.to else ""
    counted = many(count, "message", f"{count:,}+" if preview.more else None)
    question = f"{choice.action.capitalize()} {first}{counted}{to}?"
    facts = (
        {"messages": [{"id": id, "state": preview.states.get(id)} for id in choice.ids]}
        if plan is None
        else {"count": plan.count, "more": plan.more, "kinds": [asdict(kind) for kind in plan.kinds]}
    )
    if not options.agreed({**facts, "remarks": preview.remarks}, question, empty=preview.empty or limit == 0):
        return
    total = limit if preview.more else min(count, limit or count)
    with closing(Runner(store)) as runner, stoppable() as stop:
        entry = runner.begin(
            choice.action, choice.wanted, choice.ids, who=options.who, why=options.why, token=uuid4(),
            until=plan.until if plan else None, rate=options.rate, limit=limit, total=total,
            more=added.facts if added else None, wake=False,
        )  # fmt: skip
        try:
            done = runner.follow(entry, options.who, stop)
        except OutboxError:
            say(f"Another process may go on with act {entry}. To end it: outbox-tasks audit --stop {entry}", err=True)
            raise
    _report(store, choice, done)


def _show(choice: Choice, preview: Preview) -> None:
    for id in choice.ids:
        say(f"{id}  {preview.states.get(id, 'not there')}")
    if preview.empty:
        say(f"There is nothing to {choice.action}.")
    elif preview.plan is not None and preview.count:
        console().print(_kinds(preview.plan.kinds))
    for remark in preview.remarks:
        say(remark, err=True)


def _kinds(kinds: Sequence[Kind]) -> Table:
    """How many of each destination, event type, state and error, with an example of each."""
    from rich.text import Text

    rows = table("messages", "state", "what", right=("messages",))
    for kind in kinds:
        what = Text(f"{one_line(kind.destination)}  {one_line(kind.event_type)}")
        if kind.code is not None:
            what.append(f"  {one_line(kind.code)}", "red")
        what.append(f"\n{kind.example}", "dim")
        rows.add_row(f"{kind.count:,}", Text(kind.state, STATE_STYLES[kind.state]), what)
    return rows


def _report(store: Store, choice: Choice, done: Done) -> None:
    ids = done.not_changed
    states = look_ahead(store, Choice("discard", choice.wanted, ids)).states if ids else {}
    what = DONE[choice.action]
    if wants_json():
        missed = [{"id": id, "state": states.get(id)} for id in ids]
        facts = {what.replace(" ", "_"): done.count, "stopped": done.stopped, "error": done.error, "missed": missed}
        echo_json({**facts, "not_changed": done.missed, "audit": done.entry})
    else:
        say(f"{many(done.count, 'message')} {what}{', then it was stopped' if done.stopped else ''}.")
        if done.error:
            say(f"Then it failed: {done.error}", err=True)
        for id in ids:
            say(f"{id} was not: {f'it is {states[id]}' if id in states else 'there is no such message'}.", err=True)
        if done.missed > len(ids):
            say(f"{many(done.missed, 'message')} not: {WHY_NOT.get(choice.action, WHY_NOT['redrive'])}.", err=True)
        if choice.action == "redrive" and done.count:
            say(f"What becomes of them: outbox-tasks audit --became {done.entry}")
    if done.stopped or done.error or ids:
        raise SystemExit(1)


@contextmanager
def stoppable() -> Iterator[Event]:
    """An event that the first Ctrl-C or SIGTERM sets. The second one interrupts."""
    stop = Event()

    def stop_or_interrupt(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    former = {number: signal.signal(number, stop_or_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, action in former.items():
            signal.signal(number, action)
