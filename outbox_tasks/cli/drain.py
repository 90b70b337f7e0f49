"""`outbox-tasks drain`: send without workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from outbox_tasks.cli.shared.acts import stoppable
from outbox_tasks.cli.shared.output import console, echo_json, json_option, say, wants_json
from outbox_tasks.cli.shared.store import open_store, relay_settings
from outbox_tasks.model import Bundle, Step, Verdict
from outbox_tasks.operating.unsent import COUNTED, Unsent, unsent
from outbox_tasks.relay.drain import Drained
from outbox_tasks.relay.drain import drain as send_due
from outbox_tasks.relay.publishers import Publishers
from outbox_tasks.telemetry.counters import Counters
from outbox_tasks.text import many, one_line


@click.command()
@click.option("--for", "seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after this many seconds.")
@json_option
def drain(seconds: float | None) -> None:
    """Send due messages from this process, without workers, then end.

    For cron, or a function that runs on a schedule. It takes leases as workers do, so several drains and workers can
    run at once. A message that fails is due again later. Ctrl-C and SIGTERM end it after the current bundle. Exit
    code 1 if a message is dead, or if due messages could not be sent: it says which destination has them, and why.
    What waits behind something else is no failure.
    """
    raise SystemExit(_run(seconds))


def _run(seconds: float | None) -> int:
    """Drain, and say what it did. Returns the exit code."""
    settings = relay_settings()
    settings.check_destinations()
    with open_store(settings=settings) as store, stoppable() as stopped, _progress() as progress:
        publishers, counters = Publishers(settings), Counters(lambda: store)
        deadline = None if seconds is None else time.monotonic() + seconds
        task = progress.add_task("sent 0")
        sent = 0

        def stop() -> bool:
            return stopped.is_set() or (deadline is not None and time.monotonic() > deadline)

        def settled(bundle: Bundle, verdicts: Sequence[Verdict], _: float) -> None:
            nonlocal sent
            sent += sum(verdict.step in (Step.SENT, Step.HANDED) for verdict in verdicts)
            counters.count(bundle.destination, (verdict.step.value for verdict in verdicts))
            progress.update(task, description=one_line(f"sent {sent:,}, now {bundle.destination}"))

        try:
            drained = send_due(store, publishers, stop=stop, settled=settled)
            counters.ran("claim", claimed=sent)
        finally:
            counters.close()
            publishers.close()
        not_sent = unsent(store) if drained.ended else []
    _report(drained, not_sent)
    failed = any(one.state != "behind" for one in not_sent)
    return int(bool(drained.dead or drained.steps[Step.OUTAGE] or failed))


def _report(drained: Drained, not_sent: Sequence[Unsent]) -> None:
    if wants_json():
        counts = {"sent": drained.sent, "later": drained.later, "dead": drained.dead, "ended": drained.ended}
        left = [asdict(one) for one in not_sent]
        echo_json({**counts, "outages": drained.steps[Step.OUTAGE], "left": left})
        return
    text = f"Sent {drained.sent:,}"
    if drained.later:
        text += f", {drained.later:,} failed and will be tried again"
    if drained.dead:
        text += f", {drained.dead:,} {'is' if drained.dead == 1 else 'are'} dead (see outbox-tasks errors)"
    if not not_sent:
        say(text + (". Nothing more is due." if drained.ended else ". Stopped before the end."))
        return
    say(f"{text}.")
    for one in not_sent:
        waiting = many(one.waiting, "message", f"{one.waiting:,} or more" if one.waiting >= COUNTED else None)
        say(one_line(f"{one.destination} still has {waiting}, because {one.why}."))


def _progress() -> Progress:
    """A line that moves, on a terminal only."""
    screen = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
