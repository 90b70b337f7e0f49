"""`outbox-tasks status`: what is wrong, what waits, who is at work."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outbox_tasks import __version__
from outbox_tasks.cli.shared.output import answer, cell, echo_raw, json_option, wants_json
from outbox_tasks.cli.shared.problems_shown import for_programs as problems_for_programs
from outbox_tasks.cli.shared.problems_shown import shown
from outbox_tasks.cli.shared.store import installed
from outbox_tasks.database.schema import VERSION
from outbox_tasks.operating.audit import under_way
from outbox_tasks.operating.heartbeats import Heartbeat
from outbox_tasks.operating.overview import DestinationStatus, cut
from outbox_tasks.operating.problems import Connections
from outbox_tasks.operating.status import Status, read
from outbox_tasks.settings import Settings
from outbox_tasks.text import number, one_line, span

STATES = {
    "refuses": ("refuses everything", "red"), "failing": ("many sends fail", "red"), "open": ("circuit open", "red"),
    "trying": ("being tried", "yellow"), "paused": ("paused", "yellow"), "unknown": ("unknown", "red"),
}  # fmt: skip
"""The states of destinations that are not in service, by `DestinationStatus.state`: in words, and the style."""

COUNTS = (
    ("leased", "leased", ""), ("handed", "handed over", ""), ("runs", "running", ""), ("retry", "retrying", "yellow"),
    ("later", "scheduled", ""), ("dead", "dead", "red"),
)  # fmt: skip
"""Columns of the destinations: the title, the state of the messages and the style."""

SUPERVISED = ("handed over", "running")
"""States that are shown only if there are such messages."""

ROWS_SHOWN = 50


@click.command()
@click.option("--prometheus", is_flag=True, help="Print problems and figures for Prometheus.")
@json_option
def status(prometheus: bool) -> None:
    """Show what is wrong, how much waits for each destination and for how long, and who is at work.

    Counts are exact up to 1,000; "~" marks an estimate. Rates are those of the last minute. Exit code 0, even if
    something is wrong: for supervisors there is `health`.

    --prometheus is for node_exporter's textfile collector or a pushgateway. `health --serve` answers with the same at
    /metrics. A worker's own counts are at the /metrics of the worker.
    """
    if prometheus and wants_json():
        raise click.UsageError("--prometheus goes without --json")
    app, settings = installed() or (None, Settings())
    with closing(Connections(settings, app)) as connections:
        if prometheus:
            from prometheus_client import generate_latest

            from outbox_tasks.telemetry.metrics import database_registry

            echo_raw(generate_latest(database_registry(connections)))
        else:
            status = read(connections)
            answer(for_programs(status, settings), status_shown(status, settings))


def for_programs(status: Status, settings: Settings) -> dict[str, Any]:
    are_known = isinstance(status.queues, dict)
    last_runs = {kind: status.heartbeats.last.get(kind) for kind in ("claim", "beat", "maintain")}
    return {
        "problems": problems_for_programs(status.examination),
        "destinations": [_destination(name, counts) for name, counts in sorted(status.destinations.items())],
        "more_destinations": cut(status.destinations),
        "feeds": [state._asdict() for state in status.feeds],
        "workers": [
            {"name": worker.name, "seen_at": worker.seen_at, "age": worker.age, **worker.facts}
            for worker in (*status.heartbeats.workers, *status.heartbeats.supervising)
        ],
        "acts": [act._asdict() for act in status.acts],
        "drains": status.drains,
        "processes": status.processes,
        **{kind: last and {"seen_at": last.seen_at, "age": last.age, **last.facts} for kind, last in last_runs.items()},
        "queues": status.queues if are_known else None,
        "queues_unknown": None if are_known else status.queues,
        "archived": {"count": status.archived, "estimated": status.estimated},
        "stale_after": settings.stale_after,
        "version": __version__,
        "tables": VERSION,
    }


def _destination(name: str, status: DestinationStatus) -> dict[str, Any]:
    facts = asdict(status)
    return {
        "name": name,
        **facts.pop("breaker"),
        **facts,
        "state": status.state,
        "estimated": sorted(status.estimated),
        "waiting": status.waiting,
        "share_failed": status.share_failed,
        "empty_in": status.empty_in,
    }


def status_shown(status: Status, settings: Settings) -> RenderableType:
    """The problems, then what waits, then who is at work."""
    parts: list[RenderableType] = [*shown(status.examination.problems, causes=False)]
    parts = parts or [Text("✓ in order", style="bold green")]
    parts += [cell(f"{under_way(act._asdict())}: outbox-tasks audit --stop {act.seq}", "cyan") for act in status.acts]
    if not status.destinations:  # the database does not say what waits, and who is at work
        return Group(*parts)
    parts += [Text(), _destinations(status, settings)]
    workers = [*status.heartbeats.workers, *status.heartbeats.supervising]
    if workers:
        parts += [Text(), _workers(workers)]
    return Group(*parts, Text(), _footer(status))


def _destinations(status: Status, settings: Settings) -> Table:
    destinations = status.destinations
    supervised = any(each.states[state] for each in destinations.values() for state in SUPERVISED)
    columns = [column for column in COUNTS if supervised or column[1] not in SUPERVISED]
    titles = [title for title, *_ in columns]
    titles = ["due", *titles, "oldest", "sent\n/min", "failed\n/min", "last\nsent", "empty\nin"]
    table = _plain_table("destination", right=titles)
    for name, each in status.ranked[:ROWS_SHOWN]:
        rough = each.estimated
        waits_long = each.oldest is not None and each.oldest > settings.stale_after
        table.add_row(
            _named(name, each),
            _count(each.due, estimated="pending" in rough),
            *(_count(each.states[state], estimated=state in rough, style=style) for _, state, style in columns),
            _span(each.oldest, "red" if waits_long else ""),
            _count(each.sent),
            _count(each.failed, style="yellow"),
            _span(each.arrived_ago),
            _span(each.empty_in if each.waiting else None),
        )
    if (rest := len(destinations) - ROWS_SHOWN) > 0:
        table.caption = f"and {rest:,} more, with fewer problems and a shorter backlog: status --json"
    return table


def _named(name: str, status: DestinationStatus) -> Text:
    """The name, and below it the state, unless it is in service."""
    if status.state == "closed":
        return cell(name)
    return cell(name).append("\n  ").append(*STATES[status.state])


def _span(seconds: float | None, style: str = "") -> Text:
    return Text("-" if seconds is None else span(seconds), style=style)


def _count(count: float, *, estimated: bool = False, style: str = "") -> Text:
    return Text(number(count, estimated=estimated), style=style if count else "dim")


def _workers(workers: Iterable[Heartbeat]) -> Table:
    table = _plain_table("worker", "queues", "pool", "seen")
    for worker in workers:
        queues = [queue.rpartition(".")[2] for queue in worker.queues]
        pool = f"{worker.facts.get('pool')} × {worker.facts.get('concurrency')}"
        seen = f"{span(worker.age)} ago" if worker.alive else f"lost, {span(worker.age)} ago"
        cells = (worker.name, ", ".join(queues), pool, seen)
        table.add_row(*(cell(text) for text in cells), style="" if worker.alive else "red")
    return table


def _footer(status: Status) -> Text:
    last = status.heartbeats.last
    ages = {kind: f"{span(last[kind].age)} ago" if kind in last else "never" for kind in ("claim", "beat", "maintain")}
    if isinstance(status.queues, dict):
        queued = " · ".join(f"{name.rpartition('.')[2]} {number(count)}" for name, count in status.queues.items())
    else:
        queued = one_line(status.queues)
    lines = [
        "last: " + " · ".join(map(" ".join, ages.items())),
        f"queued: {queued}; drains at work: {status.drains}; processes that send: {status.processes}",
        f"archived: {number(status.archived, estimated=status.estimated)}; outbox-tasks {__version__}, tables of "
        f"version {VERSION}",
    ]
    text = Text("\n".join(lines), style="dim")
    text.highlight_words(["never"], "not dim bold yellow")
    return text


def _plain_table(*titles: str, right: Iterable[str] = ()) -> Table:
    table = Table(*titles, box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.columns[0].overflow = "fold"
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table
