"""How a bench is started and shown: as tables for people, or as JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import wraps
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.machine import Watch, sentence
from outbox_tasks import __version__

NAMES = ("yardsticks", "latency", "order", "snapshot", "fairness", "write", "supervised", "feeds")

Say = Callable[[str], object]
"""Tells people what is being measured."""


@dataclass
class Figures:
    """A table: a row for each name, with its values by column."""

    title: str
    rows: dict[str, dict[str, Any]]
    note: str = ""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    def lines(self) -> list[list[str]]:
        """The cells of each row, as text."""
        return [[name, *(shown(row.get(column, "")) for column in self.columns)] for name, row in self.rows.items()]


@dataclass
class Report:
    """What a bench found, and under which conditions."""

    bench: str
    at: str
    version: str
    options: dict[str, Any]
    machine: dict[str, Any]
    figures: list[Figures]


def bench(function: Callable[..., list[Figures]]) -> click.Command:
    """The command of a bench. The function gets `say` and its options; its module's docstring says what it measures."""
    name = function.__module__.rpartition(".")[2]

    @wraps(function)
    def run(as_json: bool, **options: Any) -> None:
        watch = Watch()
        with Console(stderr=True).status("starting") as status:
            figures = function(status.update, **options)
        now = datetime.now(UTC).isoformat(timespec="minutes")
        report = Report(name, now, __version__, options, watch.conditions(), figures)
        if as_json:
            click.echo(json.dumps(asdict(report), ensure_ascii=False))
        else:
            show(report)

    run = click.option("--json", "as_json", is_flag=True, help="For programs.")(run)
    return click.command(name, context_settings={"help_option_names": ["-h", "--help"]})(run)


def show(report: Report) -> None:
    """For people."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for figures in report.figures:
        table = Table(caption=figures.note or None, caption_justify="left")
        for number, heading in enumerate((figures.title, *figures.columns)):
            table.add_column(heading, justify="right" if number else "left", no_wrap=not number)
        for line in figures.lines():
            table.add_row(*line)
        console.print(table)
    console.print(sentence(report.machine), markup=False)


def shown(value: Any) -> str:
    """A value as people read it; of a list its lowest and its highest."""
    if isinstance(value, list):
        low, high = shown(min(value)), shown(max(value))
        return low if low == high else f"{low} to {high}"
    if isinstance(value, bool | str) or value is None:
        return "" if value is None else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def spread(values: list[float], digits: int = 2) -> dict[str, Any]:
    """The median of several rounds, and all of them."""
    return {"median": round(median(values), digits), "rounds": [round(value, digits) for value in values]}
