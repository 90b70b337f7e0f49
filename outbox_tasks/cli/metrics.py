"""`outbox-tasks metrics`: figures of the database for Prometheus."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.output import echo_json, echo_raw, json_option, wants_json
from outbox_tasks.cli.shared.store import open_store
from outbox_tasks.telemetry.metrics import database_registry


@click.command()
@json_option
def metrics() -> None:
    """Print figures of the outbox for Prometheus: what is due, dead or late, breakers, workers.

    For node_exporter's textfile collector or a pushgateway. A worker's own counts are at its /metrics.
    """
    with open_store() as store:
        registry = database_registry(store)
    if wants_json():
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        found = [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in samples]
        echo_json({"metrics": found})
    else:
        from prometheus_client import generate_latest

        echo_raw(generate_latest(registry))
