"""The commands that do something to messages: each shows what it would do, and asks."""

from __future__ import annotations

import getpass
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click

from outbox_tasks.cli.common import console, echo_json, json_option, open_store, progress_console, say
from outbox_tasks.cli.filters import MessageId, as_filter, filters
from outbox_tasks.cli.texts import many

if TYPE_CHECKING:
    from outbox_tasks.operating.messages.acts import Action, Done, Plan
    from outbox_tasks.operating.messages.find import Filter
    from outbox_tasks.relay.store import Store

F = TypeVar("F", bound=Callable[..., Any])

DONE = {"redrive": "redriven", "discard": "discarded", "purge": "deleted"}


@dataclass(frozen=True)
class Options:
    """What the options say of how it is done."""

    yes: bool
    dry_run: bool
    as_json: bool
    who: str
    why: str | None
    limit: int | None = None
    rate: float | None = None

    def check(self) -> None:
        """Nobody is asked through JSON."""
        if self.as_json and not (self.yes or self.dry_run):
            raise click.UsageError("with --json nobody is asked: add --yes or --dry-run")


def person(command: F) -> F:
    """--why and --who, for the audit."""
    why = click.option("--why", help="Why it is done, for the audit.")
    who = click.option("--who", default=getpass.getuser, metavar="NAME", help="Who does it, if not you; for the audit.")
    return why(who(command))


def careful(command: F) -> F:
    """--dry-run and --yes."""
    dry_run = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
    return dry_run(click.option("--yes", is_flag=True, help="Do it without asking.")(person(json_option(command))))


def choosing(command: F) -> F:
    """The messages: ids, or filters; and how many of them, how fast."""
    for option in reversed(
        [
            click.argument("ids", nargs=-1, type=MessageId()),
            click.option("--group", metavar="GROUP", help="Only those of this error group: see `errors`."),
            filters,
            click.option("--all", "everything", is_flag=True, help="All of them."),
            click.option("--limit", type=click.IntRange(1), help="So many at most."),
            click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="So many a second."),
            careful,
        ]
    ):
        command = option(command)
    return command


@click.command(short_help="Send dead letters after all.")
@choosing
def redrive(**given: Any) -> None:
    """Send dead letters after all: those of these IDS, or all that the filters say.

    They are due at once, with all their attempts, and their age counts from now. One with a key goes back to its own
    place in the order of its key. Ctrl-C stops after the batch under way; what has been done stays done. Exit code 1 if
    it was stopped, or if one of the IDS is not dead.
    """
    _act("redrive", ("dead",), **given)


@click.command(short_help="Give messages up.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(["dead", "pending", "scheduled", "retrying"]),
    help="With filters: those in this state, dead if not given; may be given again.",
)  # fmt: skip
@choosing
def discard(states: tuple[str, ...], **given: Any) -> None:
    """Give messages up: they go to the archive as discarded, and are never sent.

    The dead ones of these IDS, and those that wait and are not on their way; or all that the filters say, of the dead
    ones if --state does not say otherwise. Exit code 1 as for `redrive`.
    """
    waiting = ("dead", "pending", "scheduled", "retrying")
    _act("discard", states or (waiting if given["ids"] else ("dead",)), **given)


def _act(
    action: Action,
    states: tuple[str, ...],
    ids: Sequence[UUID],
    group: str | None,
    error: str | None,
    everything: bool,
    limit: int | None,
    rate: float | None,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    who: str,
    why: str | None,
    **given: Any,
) -> None:
    filtered = any(value is not None for value in (group, error, *given.values()))
    if ids and (everything or filtered or limit):
        raise click.UsageError("give IDS, or filters, not both")
    if not (ids or everything or filtered):
        raise click.UsageError(f"say which messages to {action}: IDS, filters such as --group, or --all")
    options = Options(yes, dry_run, as_json, who, why, limit, rate)
    options.check()
    wanted = as_filter(states, error, group, **given)
    with open_store() as store:
        if ids:
            act_on_named(store, action, states, list(dict.fromkeys(ids)), options)
        else:
            act_on_chosen(store, action, wanted, options)


def act_on_named(store: Store, action: Action, states: tuple[str, ...], ids: list[UUID], options: Options) -> None:
    """Do it to these messages, and tell of which it could not be done."""
    from outbox_tasks.operating.messages.acts import Mending
    from outbox_tasks.operating.messages.find import Lookup

    found = Lookup(store).states(ids)
    if not options.as_json:
        for id in ids:
            say(f"{id}  {found.get(str(id), 'not there')}")
    if options.dry_run:
        if options.as_json:
            echo_json({"dry_run": True, "messages": [{"id": id, "state": found.get(str(id))} for id in ids]})
        return
    if not options.yes:
        click.confirm(f"{action.capitalize()} {_messages(len(ids))}?", abort=True)
    target = str(ids[0]) if len(ids) == 1 else None
    facts = {} if target else {"named": len(ids)}
    mending = Mending(store, options.who, options.why)
    with stoppable() as stop, progress(len(ids), options) as told:
        done = mending.act(
            action, ids, states=states, target=target, facts=facts, rate=options.rate, stop=stop, told=told
        )
    _tell(store, action, done, options)


def act_on_chosen(
    store: Store, action: Action, wanted: Filter, options: Options, until: Callable[[datetime], datetime] | None = None
) -> None:
    """Do it to all that the filter says, of those that were there when it began. `until` moves that moment."""
    from outbox_tasks.operating.messages.acts import Mending

    mending = Mending(store, options.who, options.why)
    plan = mending.plan(wanted, until)
    if not options.as_json:
        _show(plan, action, store)
    if options.dry_run or not plan.count:
        if options.as_json:
            echo_json({"dry_run": options.dry_run, **_as_json(plan)})
        return
    if not options.yes:
        first = f"the first {options.limit:,} of " if options.limit and options.limit < plan.count else ""
        click.confirm(f"{action.capitalize()} {first}{_messages(plan.count, plan.more)}?", abort=True)
    chosen = islice(mending.chosen(wanted, plan.until), options.limit)
    facts = {**wanted.facts, **({"limit": options.limit} if options.limit else {})}
    total = options.limit if plan.more else min(plan.count, options.limit or plan.count)
    with stoppable() as stop, progress(total, options) as told:
        done = mending.act(
            action, chosen, until=plan.until, states=wanted.states, facts=facts, rate=options.rate, stop=stop, told=told
        )
    done.missed.clear()  # somebody else was there first: no more to tell than the number
    _tell(store, action, done, options)


def _messages(count: int, more: bool = False) -> str:
    return many(count, "message", f"{count:,}+" if more else None)


def _show(plan: Plan, action: Action, store: Store) -> None:
    if not plan.count:
        say(f"There is nothing to {action}.")
        return
    from outbox_tasks.cli.messages import kinds

    screen = console()
    screen.print(kinds(plan.kinds, screen.width))
    if action == "redrive":
        for name in sorted({kind.destination for kind in plan.kinds} - store.settings.destinations.keys()):
            say(f"{name!r} is not configured here: its messages would be dead again in an hour.", err=True)


def _as_json(plan: Plan) -> dict[str, Any]:
    return {"count": plan.count, "more": plan.more, "kinds": [asdict(kind) for kind in plan.kinds]}


def _tell(store: Store, action: Action, done: Done, options: Options) -> None:
    from outbox_tasks.operating.messages.find import Lookup

    states = Lookup(store).states(done.missed) if done.missed else {}
    if options.as_json:
        missed = [{"id": id, "state": states.get(str(id))} for id in done.missed]
        echo_json({DONE[action]: done.count, "stopped": done.stopped, "missed": missed, "audit": done.entry})
    else:
        say(f"{_messages(done.count)} {DONE[action]}{', then it was stopped' if done.stopped else ''}.")
        for id in done.missed:
            state = states.get(str(id))
            say(f"{id} was not: it is {state}." if state else f"{id} was not: there is no such message.", err=True)
    if done.stopped or done.missed:
        raise SystemExit(1)


@contextmanager
def stoppable() -> Iterator[Event]:
    """An event that the first Ctrl-C sets; the second one is as ever."""
    stop = Event()

    def ask(number: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress(total: int | None, options: Options) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal; what it yields moves it."""
    screen = progress_console()
    if options.as_json or not screen.is_terminal:
        yield lambda count: None
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), console=screen) as bar:
        task = bar.add_task("messages", total=total)
        yield lambda count: bar.advance(task, count)
