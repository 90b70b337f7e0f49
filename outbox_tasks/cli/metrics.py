"""`outbox-tasks metrics`: figures of the database for Prometheus."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.output import echo_json, echo_raw, json_option, wants_json
from outbox_tasks.cli.shared.store import open_store


@click.command()
@json_option
def metrics() -> None:
    """Print figures of the outbox for Prometheus: what is due, dead or late, breakers, workers.

    For node_exporter's textfile collector or a pushgateway. A worker's own counts are at its /metrics.
    """
    from outbox_tasks.telemetry.metrics import database_exposition, database_samples

    with open_store() as store:
        if wants_json():
            echo_json({"metrics": database_samples(store)})
        else:
            echo_raw(database_exposition(store)[0])
