"""What redrive, try, discard, purge and edit share: show what would be done, ask, do it, and say what was done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import click

from outbox_tasks.cli.shared.options import ActOptions, act_options, as_filter, filter_options, limit_and_rate, together
from outbox_tasks.cli.shared.output import STATE_STYLES, console, echo_json, say, table, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.acts import Action, Done, Kind
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.filters import DONE, for_act
from outbox_tasks.operating.messages.preview import Choice, Preview, preview
from outbox_tasks.relay.store import Store
from outbox_tasks.text import many, one_line

if TYPE_CHECKING:
    from rich.table import Table


choice_options = together(
    click.argument("ids", nargs=-1, type=click.UUID),
    click.option("--group", metavar="GROUP", help="Only messages of this error group: see `errors`."),
    filter_options,
    click.option("--all", "everything", is_flag=True, help="All of them."),
    limit_and_rate,
    act_options,
)
"""Which messages: IDS or filters; how many, how fast; and `act_options`."""


def act(
    action: Action,
    states: tuple[str, ...],
    ids: Sequence[UUID],
    group: str | None,
    error: str | None,
    everything: bool,
    limit: int | None,
    rate: float | None,
    options: ActOptions,
    **given: Any,
) -> None:
    """Do it to the messages that the options choose. Takes the values of `choice_options`."""
    filtered = any(value is not None for value in (group, error, *given.values()))
    check_choice(f"{action}: IDS, filters such as --destination", ids, everything or filtered, limit)
    wanted = for_act(action, as_filter(states, error, group, **given), named=bool(ids))
    with open_store() as store:
        do(store, Choice(action, wanted, list(dict.fromkeys(ids))), replace(options, limit=limit, rate=rate))


def check_choice(what: str, ids: Sequence[UUID], filtered: bool, limit: int | None) -> None:
    """Raises `UsageError` unless either ids or filters were given."""
    if ids and (filtered or limit):
        raise click.UsageError("give IDS, or filters, not both")
    if not (ids or filtered):
        raise click.UsageError(f"say which messages to {what}, or --all")


def do(store: Store, choice: Choice, options: ActOptions, until: Callable[[datetime], datetime] | None = None) -> None:
    """Show what would be done, ask, do it, and say what was done. `until`: see `Operator.plan`."""
    found = preview(store, choice, until)
    plan = found.plan
    if not wants_json():
        _show(choice, found)
    count = len(choice.ids) or found.count
    first = f"the first {options.limit:,} of " if options.limit and options.limit < count else ""
    question = f"{choice.action.capitalize()} {first}{messages(count, found.more)}?"
    shown = (
        {"messages": [{"id": id, "state": found.states.get(id)} for id in choice.ids]}
        if plan is None
        else {"count": plan.count, "more": plan.more, "kinds": [asdict(kind) for kind in plan.kinds]}
    )
    if not options.agreed({**shown, "remarks": found.remarks}, question, empty=found.empty):
        return
    total = options.limit if found.more else min(count, options.limit or count)
    _report(store, choice, followed(store, choice, options, total, until=plan.until if plan else None))


def followed(store: Store, choice: Choice, options: ActOptions, total: int | None, **more: Any) -> Done:
    """Begin an act and run it, with a bar. Ctrl-C ends it. `more`: see `Runner.begin`."""
    how: dict[str, Any] = {
        "who": options.who,
        "why": options.why,
        "rate": options.rate,
        "limit": options.limit,
        "total": total,
    }
    with closing(Runner(store)) as runner, stoppable() as stop, progress(total) as moved:
        entry = runner.begin(choice.action, choice.wanted, choice.ids, token=uuid4(), wake=False, **how, **more)
        return runner.follow(entry, options.who, stop, moved)


def messages(count: int, more: bool = False) -> str:
    """A number of messages in words; `more`: there are more."""
    return many(count, "message", f"{count:,}+" if more else None)


def _show(choice: Choice, found: Preview) -> None:
    for id in choice.ids:
        say(f"{id}  {found.states.get(id, 'not there')}")
    if found.empty:
        say(f"There is nothing to {choice.action}.")
    elif found.plan is not None and found.count:
        console().print(kinds_table(found.plan.kinds))
    for remark in found.remarks:
        say(remark, err=True)


def kinds_table(found: Sequence[Kind]) -> Table:
    """How many of each destination, event type, state and error, with an example of each."""
    from rich.text import Text

    shown = table("messages", "state", "what", right=("messages",))
    for kind in found:
        what = Text(f"{one_line(kind.destination)}  {one_line(kind.event_type)}")
        if kind.code is not None:
            what.append(f"  {one_line(kind.code)}", "red")
        what.append(f"\n{kind.example}", "dim")
        shown.add_row(f"{kind.count:,}", Text(kind.state, STATE_STYLES[kind.state]), what)
    return shown


def _report(store: Store, choice: Choice, done: Done) -> None:
    states = preview(store, replace(choice, ids=done.not_changed)).states if done.not_changed else {}
    what = DONE[choice.action]
    if wants_json():
        missed = [{"id": id, "state": states.get(id)} for id in done.not_changed]
        shown = {what.replace(" ", "_"): done.count, "stopped": done.stopped, "error": done.error, "missed": missed}
        echo_json({**shown, "audit": done.entry})
    else:
        say(f"{messages(done.count)} {what}{', then it was stopped' if done.stopped else ''}.")
        if done.error:
            say(f"Then it failed: {done.error}", err=True)
        for id in done.not_changed:
            say(f"{id} was not: {f'it is {states[id]}' if id in states else 'there is no such message'}.", err=True)
        if done.missed > len(done.not_changed):
            say(f"{messages(done.missed)} not: on their way, due already, or changed by somebody else.", err=True)
        if choice.action == "redrive" and done.count:
            say(f"What becomes of them: outbox-tasks audit --became {done.entry}")
    if done.stopped or done.error or done.not_changed:
        raise SystemExit(1)


@contextmanager
def stoppable() -> Iterator[Event]:
    """An event that the first Ctrl-C or SIGTERM sets. The second one interrupts."""
    stop = Event()

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, action in before.items():
            signal.signal(number, action)


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal, and the function that moves it."""
    screen = console(stderr=True)
    if wants_json() or not screen.is_terminal:
        yield lambda count: None
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=screen) as bar:
        task = bar.add_task("messages", total=total)
        yield lambda count: bar.advance(task, count)
