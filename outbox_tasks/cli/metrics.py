"""`outbox-tasks metrics`: figures of the database for Prometheus."""

from __future__ import annotations

from contextlib import closing

import click

from outbox_tasks.cli.shared.output import echo_json, echo_raw, json_option, wants_json
from outbox_tasks.cli.shared.store import installed
from outbox_tasks.operating.problems import Connections
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.metrics import database_registry


@click.command()
@json_option
def metrics() -> None:
    """Print the problems and the state of the outbox for Prometheus.

    For node_exporter's textfile collector or a pushgateway. A worker's own counts are at its /metrics.
    """
    app, settings = installed() or (None, Settings())
    with closing(Connections(settings, app)) as connections:
        registry = database_registry(connections)
    if wants_json():
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        found = [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in samples]
        echo_json({"metrics": found})
    else:
        from prometheus_client import generate_latest

        echo_raw(generate_latest(registry))
