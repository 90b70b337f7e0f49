"""`outbox-tasks drain`, as people and programs see it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from outbox_tasks.cli.common import echo_json, open_store, progress_console
from outbox_tasks.drain import Drained, drain, settings_for
from outbox_tasks.model import Bundle, Step, Verdict
from outbox_tasks.publish import Publishers
from outbox_tasks.settings import Settings
from outbox_tasks.tallies import Tallies


def run(seconds: float | None, *, as_json: bool) -> int:
    """Drain, and tell what came of it. Returns the exit code."""
    settings = settings_for(Settings())
    settings.check_destinations()
    with open_store(settings=settings) as store, _asked_to_stop() as stopped, _progress() as progress:
        publishers, tallies = Publishers(settings), Tallies(lambda: store)
        deadline = None if seconds is None else time.monotonic() + seconds
        task = progress.add_task("sent 0")
        sent = 0

        def stop() -> bool:
            return bool(stopped) or (deadline is not None and time.monotonic() > deadline)

        def settled(bundle: Bundle, verdicts: Sequence[Verdict], _: float) -> None:
            nonlocal sent
            sent += sum(verdict.step is Step.SENT for verdict in verdicts)
            tallies.count(bundle.destination, (verdict.step.value for verdict in verdicts))
            progress.update(task, description=f"sent {sent:,}, now {bundle.destination}")

        try:
            drained = drain(store, publishers, stop=stop, settled=settled)
            tallies.saw("claim", claimed=sent)
        finally:
            tallies.close()
            publishers.close()
    _tell(drained, as_json=as_json)
    return int(bool(drained.dead or drained.steps[Step.OUTAGE]))


def _tell(drained: Drained, *, as_json: bool) -> None:
    counts = {"sent": drained.sent, "later": drained.later, "dead": drained.dead}
    if as_json:
        echo_json({**counts, "ended": drained.ended, "outages": drained.steps[Step.OUTAGE]})
        return
    said = f"Sent {drained.sent:,}"
    if drained.later:
        said += f", {drained.later:,} failed and will be tried again"
    if drained.dead:
        said += f", {drained.dead:,} are dead (outbox-tasks errors tells of what)"
    click.echo(said + (". Nothing more is due." if drained.ended else ". Stopped before the end."))


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """The signals that have come: the first ends the drain after the bundle in hand, a second one at once."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _progress() -> Progress:
    """On a terminal only."""
    console = progress_console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
