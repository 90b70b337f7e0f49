"""`outbox-tasks monitor` and `metrics`: for those that watch."""

from __future__ import annotations

from contextlib import closing, suppress

import click

from outbox_tasks.cli.shared.output import echo_json, echo_raw, json_option, say, wants_json
from outbox_tasks.cli.shared.store import installed, relay_settings
from outbox_tasks.operating.problems import Connections
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.metrics import database_registry
from outbox_tasks.telemetry.monitor import Monitor, standalone


@click.command()
@click.option("--host", help="The address to listen on. Default: `monitor_host`.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Default: `monitor_port`, or 9187. 0: any free port.")
def monitor(host: str | None, port: int | None) -> None:
    """Answer /livez, /readyz and /metrics over HTTP, until Ctrl-C. A worker with `monitor_port` does it too."""
    settings = relay_settings()
    chosen = {"monitor_host": host, "monitor_port": port if port is not None else settings.monitor_port or 9187}
    settings = settings.replace(**{name: value for name, value in chosen.items() if value is not None})
    serving = Monitor(settings, standalone(settings))
    say(f"The monitor answers at {serving.url}/livez, /readyz and /metrics.")
    with serving, suppress(KeyboardInterrupt):
        serving.serve_forever()


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
