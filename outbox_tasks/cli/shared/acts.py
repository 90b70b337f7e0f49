"""What redrive, discard, purge and edit share: show what would be done, ask, do it, and say what was done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from outbox_tasks.cli.shared.options import ActOptions, act_options, as_filter, filter_options, limit_and_rate, together
from outbox_tasks.cli.shared.output import STATE_STYLES, console, echo_json, say, table, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.operating.messages.acts import Action, Done, Kind, Operator, Plan
from outbox_tasks.operating.messages.filters import DONE, for_act
from outbox_tasks.operating.messages.find import Filter, Lookup
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
    check_choice(f"{action}: IDS, filters such as --group", ids, everything or filtered, limit)
    options = replace(options, limit=limit, rate=rate)
    wanted = for_act(action, as_filter(states, error, group, **given), named=bool(ids))
    with open_store() as store:
        if ids:
            act_on_ids(store, action, wanted.states, list(dict.fromkeys(ids)), options)
        else:
            act_on_filter(store, action, wanted, options)


def check_choice(what: str, ids: Sequence[UUID], filtered: bool, limit: int | None) -> None:
    """Raises `UsageError` unless either ids or filters were given."""
    if ids and (filtered or limit):
        raise click.UsageError("give IDS, or filters, not both")
    if not (ids or filtered):
        raise click.UsageError(f"say which messages to {what}, or --all")


def act_on_ids(store: Store, action: Action, states: tuple[str, ...], ids: list[UUID], options: ActOptions) -> None:
    """Do it to these messages, and say which were in another state."""
    found = Lookup(store).states(ids)
    if not wants_json():
        for id in ids:
            say(f"{id}  {found.get(str(id), 'not there')}")
    plan = {"messages": [{"id": id, "state": found.get(str(id))} for id in ids]}
    if not options.agreed(plan, f"{action.capitalize()} {messages(len(ids))}?"):
        return
    target = str(ids[0]) if len(ids) == 1 else None
    how = {"states": states, "target": target, "facts": {} if target else {"named": len(ids)}}
    _report(store, action, _done(store, action, ids, options, len(ids), **how))


def act_on_filter(
    store: Store,
    action: Action,
    wanted: Filter,
    options: ActOptions,
    until: Callable[[datetime], datetime] | None = None,
) -> None:
    """Do it to all messages of the filter that were there when it began. `until` moves that moment."""
    operator = Operator(store, options.who, options.why)
    plan = operator.plan(wanted, until)
    if not wants_json():
        _show(plan, action, store)
    first = f"the first {options.limit:,} of " if options.limit and options.limit < plan.count else ""
    question = f"{action.capitalize()} {first}{messages(plan.count, plan.more)}?"
    shown = {"count": plan.count, "more": plan.more, "kinds": [asdict(kind) for kind in plan.kinds]}
    if not options.agreed(shown, question, empty=not plan.count):
        return
    chosen = islice(operator.chosen(wanted, plan.until), options.limit)
    total = options.limit if plan.more else min(plan.count, options.limit or plan.count)
    facts = {**wanted.facts, **({"limit": options.limit} if options.limit else {})}
    done = _done(store, action, chosen, options, total, until=plan.until, states=wanted.states, facts=facts)
    done.missed.clear()  # somebody else acted on these first; their number is enough
    _report(store, action, done)


def _done(
    store: Store, action: Action, ids: Iterable[UUID], options: ActOptions, total: int | None, **how: Any
) -> Done:
    with stoppable() as stop, progress(total) as moved:
        operator = Operator(store, options.who, options.why)
        return operator.act(action, ids, rate=options.rate, stop=stop, progress=moved, **how)


def messages(count: int, more: bool = False) -> str:
    """A number of messages in words; `more`: there are more."""
    return many(count, "message", f"{count:,}+" if more else None)


def _show(plan: Plan, action: Action, store: Store) -> None:
    if not plan.count:
        say(f"There is nothing to {action}.")
        return
    console().print(kinds_table(plan.kinds))
    if action == "redrive":
        for name in sorted({kind.destination for kind in plan.kinds} - store.settings.destinations.keys()):
            say(f"{name!r} is not configured here: its messages would be dead again in an hour.", err=True)


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


def _report(store: Store, action: Action, done: Done) -> None:
    states = Lookup(store).states(done.missed) if done.missed else {}
    if wants_json():
        missed = [{"id": id, "state": states.get(str(id))} for id in done.missed]
        echo_json({DONE[action]: done.count, "stopped": done.stopped, "missed": missed, "audit": done.entry})
    else:
        say(f"{messages(done.count)} {DONE[action]}{', then it was stopped' if done.stopped else ''}.")
        for id in done.missed:
            state = states.get(str(id))
            say(f"{id} was not: it is {state}." if state else f"{id} was not: there is no such message.", err=True)
        if action == "redrive" and done.count:
            say(f"What becomes of them: outbox-tasks audit --became {done.entry}")
    if done.stopped or done.missed:
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
