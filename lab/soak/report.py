"""The verdict, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab.soak.result import Result, commit
from outbox_tasks import __version__
from outbox_tasks.text import one_line, printable


class Part(NamedTuple):
    """A table. All columns but the first are numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def parts(result: Result) -> Iterator[Part]:
    """The tables."""
    v = result.verdict
    figures = [
        ("Committed", v.committed),
        ("Rolled back", v.rolled_back),
        ("Delivered", v.delivered),
        ("Dead letters, as planned", v.dead),
        ("Lost", len(v.lost)),
        ("Ghosts: rolled back, yet delivered", len(v.ghosts)),
        ("Stuck", len(v.stuck)),
        ("Dead letters that should have been delivered", len(v.died)),
        ("Overtakes of a key", len(v.overtakes)),
        ("Repetitions, each with its cause on the row", v.repeated),
        ("Repetitions without a cause", len(v.unexplained)),
        ("Moves of messages, each a step of the model", sum(v.transitions.values())),
        ("Moves that are none", len(v.impossible)),
        ("Faults", v.faults),
    ]
    yield Part("What became of the messages", ("", "count"), [(name, f"{count:,}") for name, count in figures])
    if v.causes:
        yield Part("Repetitions by cause", ("cause", "count"), [(name, f"{n:,}") for name, n in v.causes.items()])
    rows = [
        (kind, f"{r.faults}", *(f"{seconds:.1f}" for seconds in r[1:]))
        for kind, r in v.recoveries.items()
    ]  # fmt: skip
    heads = ("after", "faults", "next: median", "worst", "drained: median", "worst")
    yield Part("Recovery: seconds from the end of a fault to the next delivery, and to the backlog's end", heads, rows)


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """What one must know to read it."""
    yield "Version", f"{__version__}, commit {commit() or 'unknown'}"
    yield "Seed", f"{result.options.seed}: {result.planned} faults planned"
    yield "Time", f"{result.seconds:,.0f} s; drained {result.drained:,.0f} s after the last fault"
    if result.missed:
        yield "Nothing to hurt", ", ".join(f"{kind} {count}×" for kind, count in result.missed.items())
    for kind, reason in result.not_run.items():
        yield "Not run", f"{kind}: {reason}"


def conclusion(result: Result) -> str:
    """The verdict in a line."""
    if result.verdict.problems:
        return "Promises are broken."
    return "Nothing was lost, nothing rolled back was delivered, every repetition has its cause."


def show(result: Result, console: Console) -> None:
    """For a terminal."""
    for part in parts(result):
        grid = Table(title=part.title, title_justify="left", box=None, pad_edge=False)
        for place, head in enumerate(part.heads):
            grid.add_column(head, justify="right" if place else "left")
        for row in part.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
        console.print()
    for name, text in facts(result):
        console.print(Text(f"{name}: {one_line(text)}"))
    console.print()
    for problem in result.verdict.problems:
        console.print(Text(f"✗ {printable(problem)}", style="bold red"))
    good = not result.verdict.problems
    console.print(Text(f"{'✓' if good else '✗'} {conclusion(result)}", style="bold green" if good else "bold red"))
    console.print(Text(f"Repeat it: {result.command}"), soft_wrap=True)
