"""The command that tells monitoring how the outbox stands."""

from __future__ import annotations

import click

from outbox_tasks.cli.common import echo_json, json_option, open_store


@click.command(short_help="Print how the outbox stands, for Prometheus.")
@json_option
def metrics(as_json: bool) -> None:
    """Print how the outbox stands, for Prometheus: what is due, dead or late, breakers, workers.

    For node_exporter's textfile collector or a pushgateway. What workers count themselves is under their /metrics.
    """
    from outbox_tasks.telemetry.metrics import database_exposition, database_samples

    with open_store() as store:
        if as_json:
            echo_json({"metrics": database_samples(store)})
        else:
            click.echo(database_exposition(store)[0], nl=False)
