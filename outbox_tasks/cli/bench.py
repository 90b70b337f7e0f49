"""`outbox-tasks bench`: the relay beside raw Celery."""

from __future__ import annotations

import click

from outbox_tasks.cli.shared.output import json_option


@click.command()
@json_option
@click.option(
    "--messages", default=50_000, show_default=True, type=click.IntRange(100, 1_000_000), help="How many messages."
)
def bench(as_json: bool, messages: int) -> None:
    """Measure the relay against raw Celery, side by side on this machine."""
    from outbox_tasks.local.bench import bench as run

    raise SystemExit(run(messages=messages, as_json=as_json))
