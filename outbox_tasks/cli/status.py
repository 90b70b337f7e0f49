"""`outbox-tasks status`: what is wrong, what waits, who is at work."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from outbox_tasks import __version__
from outbox_tasks.cli.shared.output import answer, echo_raw, json_option, wants_json
from outbox_tasks.cli.shared.problems_shown import for_programs as problems_for_programs
from outbox_tasks.cli.shared.status_table import status_shown
from outbox_tasks.cli.shared.store import installed
from outbox_tasks.database.schema import VERSION
from outbox_tasks.operating.overview import DestinationStatus, cut
from outbox_tasks.operating.problems import Connections
from outbox_tasks.operating.status import Status, read
from outbox_tasks.settings import Settings


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
    """Everything that is shown, as JSON has it."""
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
